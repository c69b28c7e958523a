"""Training on many machines (nodes): moves rows and weights between the shared memory of nodes.

Within a node, training works as on one machine. Between nodes, a relay sends the rows of a node's lanes to an ingest on
the learner's node, and a mirror copies the newest weights to a node. Each sending node has a numbered seat; a lease
says which node holds the seat. Ray carries rows and weights; only files named `ray_*` import Ray. `nodes/` runs the
workers of a training run on other machines; the other files know nothing of runs.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
