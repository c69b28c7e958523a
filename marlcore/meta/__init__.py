"""Programs made of whole runs: several seeds, populations, and PSRO, which trains against mixtures of earlier policies.

This room knows no actors or learners: each seed, member or oracle is a run of its own. A name imports its module on
first use.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
