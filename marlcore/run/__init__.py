"""Training runs: configuration, actors and learners, the run directory, metrics and curves.

This room joins the others: `train` creates the shared memory, hands the roles to the supervisor and watches them. Only
the loops' writers and batches touch rows. A name imports its module on first use, because settings need no torch.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
