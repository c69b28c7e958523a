"""A run's roles: actors, learners and the evaluator, each made from the spec and the memory of its machine.

The same role runs in its own process or, in serial mode, in turn with the others. If its process is killed, a new one
continues from shared memory and the last checkpoint. A name imports its module on first use: only learners need torch.
"""

from ...lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
