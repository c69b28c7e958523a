"""A run's actors and learners on other machines, and its control from here; the lower floor carries rows and weights.

On each machine, an agent holds the run's part there and a program that supervises its workers: `actors.py` where
actors are, `learners.py` where a policy's learner is. The controller, in the driver, has a seat for each agent. Here
alone does the room know of training; `ray_cluster.py` is the only file here that imports Ray.
"""

from .controller import Controller
from .learners import try_learner
from .ray_cluster import RayCluster
from .uplink import Uplink
