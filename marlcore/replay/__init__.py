"""Replay buffers: sampling transitions or sequences, uniformly or by priority, while writers add.

A replay is only lanes of transitions. A sampler belongs to one process and holds all the state of sampling. Mixtures,
prefetching, the rate limiter and snapshots build on samplers. No writer ever waits, unless the caller asked for a
limiter.
"""

from ..spec import Sequence
from ..transitions import Layout
from .buffer import ReplayBuffer
from .hindsight import Hindsight
from .mixture import Mixture
from .prefetch import Prefetch
from .prioritized import Prioritized
from .rate_limiter import RateLimiter
from .sampler import Sampler
from .saving import Stateful
