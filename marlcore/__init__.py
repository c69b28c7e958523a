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

    from .algos import DQN as DQN
    from .algos import IQN as IQN
    from .batch import Batch as Batch
    from .config import ActorConfig as ActorConfig
    from .config import Config as Config
    from .config import ExplorationConfig as ExplorationConfig
    from .config import LearnerConfig as LearnerConfig
    from .config import ReplayConfig as ReplayConfig
    from .config import SupervisionConfig as SupervisionConfig
    from .envs import NamedEnvironment as NamedEnvironment
    from .envs import TreasureHunt as TreasureHunt
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
    from .protocols import Algorithm as Algorithm
    from .protocols import Environment as Environment
    from .protocols import Trainer as Trainer
    from .reader import TrajectoryReader as TrajectoryReader
    from .replay import ReplayBuffer as ReplayBuffer
    from .sampler import Sampler as Sampler
    from .sampler import Sequence as Sequence
    from .spec import Field as Field
    from .spec import TransitionSpec as TransitionSpec
    from .system import Result as Result
    from .system import train as train
    from .trajectories import TrajectoryQueue as TrajectoryQueue
    from .workergroup import WorkerContext as WorkerContext
    from .workergroup import Workers as Workers
    from .writer import Writer as Writer

__version__ = "0.1.0"

_HOME = {
    "ActorConfig": "config",
    "Algorithm": "protocols",
    "Batch": "batch",
    "ClosedError": "errors",
    "Config": "config",
    "DQN": "algos",
    "Environment": "protocols",
    "EnvironmentFailed": "errors",
    "ExplorationConfig": "config",
    "Field": "spec",
    "IQN": "algos",
    "LaneBusy": "errors",
    "LayoutMismatch": "errors",
    "LearnerConfig": "config",
    "MarlcoreError": "errors",
    "Mixture": "mixture",
    "NamedEnvironment": "envs",
    "NotEnoughData": "errors",
    "ParameterStore": "params",
    "Prefetch": "prefetch",
    "Prioritized": "priorities",
    "RateLimiter": "limiter",
    "ReplayBuffer": "replay",
    "ReplayConfig": "config",
    "Result": "system",
    "Sampler": "sampler",
    "SegmentCorrupt": "errors",
    "SegmentNotFound": "errors",
    "Sequence": "sampler",
    "SharedMemoryFull": "errors",
    "StaleHandle": "errors",
    "SupervisionConfig": "config",
    "Trainer": "protocols",
    "TrajectoryQueue": "trajectories",
    "TrajectoryReader": "reader",
    "TransitionSpec": "spec",
    "TreasureHunt": "envs",
    "UsedByTwoThreads": "errors",
    "WorkerContext": "workergroup",
    "WorkerFailed": "errors",
    "Workers": "workergroup",
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
