"""Programs of whole runs: several seeds, populations, and oracles, which train against mixtures of earlier policies.

Nothing here knows of actors or learners: each member, seed or oracle is a run of its own. Each name imports its module
on first use.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
