"""A run's roles: actors, learners and the evaluator, each made from the spec and the memory of its machine.

A role is the same in a process of its own and, in serial mode, in turn with the others. One whose process was killed
is followed by one that continues from what shared memory and the last checkpoint hold.
"""

from .actor import ActorRole
from .evaluator import EvaluatorRole
from .learner import LearnerRole
from .role import Role
