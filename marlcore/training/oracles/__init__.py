"""Policy-space response oracles: training runs whose opponents are mixtures of earlier policies, and exploitability.

Nothing here knows of actors or learners: an oracle is a run against checkpoints.
"""

from .exploitability import GameState, exploitability
from .meta_solvers import META_SOLVERS, nash, replicator, uniform
from .psro import psro
from .result import MixedPlayer, Population, PSROResult
