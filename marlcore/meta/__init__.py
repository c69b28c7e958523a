"""Programs made of whole runs: several seeds, populations, and PSRO, which trains against mixtures of earlier policies.

This package knows no actors or learners: each seed, member or oracle is a run of its own. The first use of a name
imports its module.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
