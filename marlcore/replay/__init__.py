"""Replay buffers: sampling transitions or sequences, uniformly or by priority, while writers add.

A replay is only lanes of transitions. A sampler belongs to one process and holds all the state of sampling. Mixtures,
prefetching, the rate limiter and snapshots build on samplers. This room never makes a writer wait, unless the caller
asked for a limiter.
"""

from .buffer import ReplayBuffer as ReplayBuffer
from .limiter import RateLimiter as RateLimiter
from .mixture import Mixture as Mixture
from .prefetch import Prefetch as Prefetch
from .prioritized import Prioritized as Prioritized
from .sampler import Sampler as Sampler
from .sampler import Sequence as Sequence
from .snapshot import Stateful as Stateful
from .uniform import Uniform as Uniform
