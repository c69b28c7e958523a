"""Replay buffers: drawing transitions or sequences at random, uniformly or by priority, while writers add.

A replay is lanes of transitions and no more; a sampler belongs to one process and holds all that drawing needs.
Mixtures, prefetching, the rate limiter and saved files build on samplers. This room never makes a writer wait, except
where a limiter was asked for.
"""

from .buffer import ReplayBuffer
from .limiter import RateLimiter
from .mixture import Mixture
from .prefetch import Prefetch
from .prioritized import Prioritized
from .sampler import Sampler, Sequence
from .snapshot import Stateful
from .uniform import Uniform

__all__ = [
    "Mixture",
    "Prefetch",
    "Prioritized",
    "RateLimiter",
    "ReplayBuffer",
    "Sampler",
    "Sequence",
    "Stateful",
    "Uniform",
]
