"""Training on many machines: it moves rows and weights between the nodes' shared memory, and leases seats to nodes.

Within a node, nothing changes. Between nodes, a relay sends the rows of a node's lanes to an ingest beside the learner,
and a mirror copies the newest weights to a node. Ray carries both; only files named `ray_*` import it. `nodes/` runs
the workers of a training run on other machines; the other files know nothing of runs.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
