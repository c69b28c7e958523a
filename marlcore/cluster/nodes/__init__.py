"""Runs a training run's actors and learners on other machines; the files of the folder above move rows and weights.

On each machine, an agent (a Ray actor, not an RL agent) owns the run's part there and a program that supervises its
workers: `actors.py` is the part of a machine with actors, `learners.py` that of one with a policy's learner. The
controller, in the driver, has a seat for each agent. Only `ray_cluster.py` imports Ray here.
"""

from .controller import Controller
from .learners import try_learner
from .ray_cluster import RayCluster
from .uplink import Uplink
