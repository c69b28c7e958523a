"""Programs made of whole runs: several seeds, populations, and PSRO, which trains against mixtures of earlier policies.

This package does not deal with actors or learners: each seed, member or oracle is a separate run. The first use of a
name imports its module.
"""

from ..lazy import attach_stub

__getattr__, __dir__ = attach_stub(__name__, __file__)
