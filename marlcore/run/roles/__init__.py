"""A run's roles: actors, learners and the evaluator, each made from the spec and the memory of its machine.

The same role runs in its own process or, in serial mode, in turn with the others. If its process is killed, a new one
continues from shared memory and the last checkpoint.
"""

from .actor import ActorRole
from .evaluator import EvaluatorRole
from .learner import LearnerRole
from .role import Role
