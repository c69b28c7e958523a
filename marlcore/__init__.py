"""The shared-memory core of asynchronous multi-agent reinforcement learning on one machine.

    spec = marlcore.TransitionSpec(obs=marlcore.Field((4,)), action=marlcore.Field((), "int64"))
    replay = marlcore.ReplayBuffer.create(spec, capacity=100_000, lanes=4)

Importing marlcore imports nothing heavy: each name below brings its module when it is first used, and torch comes
with the names that need it.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # as typing's, without its import: the command line wants to be ready for Ctrl-C early
if TYPE_CHECKING:
    from typing import Any

    from .batch import Batch as Batch
    from .config import Config as Config
    from .errors import ClosedError as ClosedError
    from .errors import EnvironmentFailed as EnvironmentFailed
    from .errors import LaneBusy as LaneBusy
    from .errors import LayoutMismatch as LayoutMismatch
    from .errors import MarlcoreError as MarlcoreError
    from .errors import NotEnoughData as NotEnoughData
    from .errors import SegmentCorrupt as SegmentCorrupt
    from .errors import SegmentNotFound as SegmentNotFound
    from .errors import SharedMemoryFull as SharedMemoryFull
    from .errors import StaleHandle as StaleHandle
    from .errors import UsedByTwoThreads as UsedByTwoThreads
    from .errors import WorkerFailed as WorkerFailed
    from .limiter import RateLimiter as RateLimiter
    from .mixture import Mixture as Mixture
    from .params import ParameterStore as ParameterStore
    from .prefetch import Prefetch as Prefetch
    from .priorities import Prioritized as Prioritized
    from .reader import TrajectoryReader as TrajectoryReader
    from .replay import ReplayBuffer as ReplayBuffer
    from .sampler import Sampler as Sampler
    from .sampler import Sequence as Sequence
    from .spec import Field as Field
    from .spec import TransitionSpec as TransitionSpec
    from .system import train as train
    from .trajectories import TrajectoryQueue as TrajectoryQueue
    from .writer import Writer as Writer

__version__ = "0.1.0"

_HOME = {
    "Batch": "batch",
    "ClosedError": "errors",
    "EnvironmentFailed": "errors",
    "Config": "config",
    "Field": "spec",
    "LaneBusy": "errors",
    "LayoutMismatch": "errors",
    "MarlcoreError": "errors",
    "Mixture": "mixture",
    "NotEnoughData": "errors",
    "ParameterStore": "params",
    "Prefetch": "prefetch",
    "Prioritized": "priorities",
    "RateLimiter": "limiter",
    "ReplayBuffer": "replay",
    "Sampler": "sampler",
    "SegmentCorrupt": "errors",
    "SegmentNotFound": "errors",
    "Sequence": "sampler",
    "SharedMemoryFull": "errors",
    "StaleHandle": "errors",
    "TrajectoryQueue": "trajectories",
    "TrajectoryReader": "reader",
    "TransitionSpec": "spec",
    "UsedByTwoThreads": "errors",
    "WorkerFailed": "errors",
    "Writer": "writer",
    "train": "system",
}

__all__ = sorted([*_HOME, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'marlcore' has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
