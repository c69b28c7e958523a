"""Training runs: configuration, actors and learners, the run directory, metrics and curves.

The other rooms meet here: `train` creates the shared memory, hands the roles to the supervisor and watches. This room
never touches a row or a lane itself. Each name imports its module on first use, because settings need no torch.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
