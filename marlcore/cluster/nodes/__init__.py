"""Runs a training run's actors and learners on other machines; the files of the folder above move rows and weights.

On each machine, an agent (a Ray actor, not an RL agent) owns the machine's part of the run, and a program that
supervises the workers there. `actors.py` is that part on a machine with actors, `learners.py` on a machine with a
policy's learner. The controller, in the driver, has a numbered seat for each agent. In this folder, only
`ray_cluster.py` imports Ray.
"""

from ...lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
