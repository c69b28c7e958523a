"""The shared-memory core of asynchronous multi-agent reinforcement learning on one machine.

    spec = marlcore.TransitionSpec(obs=marlcore.Field((4,)), action=marlcore.Field((), "int64"))
    replay = marlcore.ReplayBuffer.create(spec, capacity=100_000, lanes=4)

`import marlcore` is light: each name imports its module on first use, and only the names that need torch import it.
`__init__.pyi` says where each name comes from.
"""

import sys

from .lazy import attach_stub

if not getattr(sys, "_is_gil_enabled", lambda: True)():  # `one_thread` and recycled batches rely on the lock
    raise ImportError("marlcore: expected a Python with its global interpreter lock, got a free-threaded one")

__version__ = "0.2.0"

__getattr__, __dir__ = attach_stub(__name__, __file__)
