"""Training runs: configuration, actors and learners, the run directory, metrics and curves.

`train` creates the shared memory, starts the workers under a supervisor and watches them. A name imports its module on
first use, because settings need no torch.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
