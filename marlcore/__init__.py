"""The shared-memory core of asynchronous multi-agent reinforcement learning on one machine.

    spec = marlcore.TransitionSpec(obs=marlcore.Field((4,)), action=marlcore.Field((), "int64"))
    replay = marlcore.ReplayBuffer.create(spec, capacity=100_000, lanes=4)

`import marlcore` is light: each name imports its module on first use, and only the names that need torch import it.
"""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # typing's constant without its import, so that the command line handles Ctrl-C early
if TYPE_CHECKING:
    from typing import Any

    from .algos import DQN as DQN
    from .algos import IQN as IQN
    from .algos import MAPPO as MAPPO
    from .algos import PPO as PPO
    from .algos import R2D2 as R2D2
    from .algos import SAC as SAC
    from .algos import TD3 as TD3
    from .algos import RecurrentPPO as RecurrentPPO
    from .envs import NamedEnvironment as NamedEnvironment
    from .envs import TreasureHunt as TreasureHunt
    from .errors import CallbackFailed as CallbackFailed
    from .errors import ClosedError as ClosedError
    from .errors import Diverged as Diverged
    from .errors import EnvironmentFailed as EnvironmentFailed
    from .errors import LaneBusy as LaneBusy
    from .errors import LayoutMismatch as LayoutMismatch
    from .errors import MarlcoreError as MarlcoreError
    from .errors import NotEnoughData as NotEnoughData
    from .errors import NotEnoughMemory as NotEnoughMemory
    from .errors import SegmentCorrupt as SegmentCorrupt
    from .errors import SegmentNotFound as SegmentNotFound
    from .errors import SharedMemoryFull as SharedMemoryFull
    from .errors import StaleHandle as StaleHandle
    from .errors import UsedByTwoThreads as UsedByTwoThreads
    from .errors import WorkerFailed as WorkerFailed
    from .errors import WorldModelFailed as WorldModelFailed
    from .interfaces import Action as Action
    from .interfaces import Algorithm as Algorithm
    from .interfaces import Environment as Environment
    from .interfaces import Outcome as Outcome
    from .interfaces import QueueSource as QueueSource
    from .interfaces import ReplaySource as ReplaySource
    from .interfaces import Trainer as Trainer
    from .interfaces import Turn as Turn
    from .interfaces import Update as Update
    from .interfaces import VectorEnvironment as VectorEnvironment
    from .processes import Metric as Metric
    from .processes import WorkerContext as WorkerContext
    from .processes import Workers as Workers
    from .queue import TrajectoryQueue as TrajectoryQueue
    from .queue import TrajectoryReader as TrajectoryReader
    from .replay import Mixture as Mixture
    from .replay import Prefetch as Prefetch
    from .replay import Prioritized as Prioritized
    from .replay import RateLimiter as RateLimiter
    from .replay import ReplayBuffer as ReplayBuffer
    from .replay import Sampler as Sampler
    from .replay import Sequence as Sequence
    from .spaces import Spaces as Spaces
    from .spec import Field as Field
    from .spec import TransitionSpec as TransitionSpec
    from .training import ActorConfig as ActorConfig
    from .training import Config as Config
    from .training import Constant as Constant
    from .training import Evaluation as Evaluation
    from .training import EvaluationConfig as EvaluationConfig
    from .training import ExplorationConfig as ExplorationConfig
    from .training import Exponential as Exponential
    from .training import LearnerConfig as LearnerConfig
    from .training import Linear as Linear
    from .training import LoadedPolicy as LoadedPolicy
    from .training import MetricsConfig as MetricsConfig
    from .training import Piecewise as Piecewise
    from .training import ReplayConfig as ReplayConfig
    from .training import Result as Result
    from .training import Run as Run
    from .training import Schedule as Schedule
    from .training import SelfPlayConfig as SelfPlayConfig
    from .training import Status as Status
    from .training import SupervisionConfig as SupervisionConfig
    from .training import evaluate as evaluate
    from .training import load_policy as load_policy
    from .training import start as start
    from .training import train as train
    from .transitions import Batch as Batch
    from .transitions import VectorWriter as VectorWriter
    from .transitions import Writer as Writer
    from .weights import ParameterStore as ParameterStore

__version__ = "0.1.0"

_HOME = {
    "Action": "interfaces",
    "ActorConfig": "training",
    "Algorithm": "interfaces",
    "Batch": "transitions",
    "CallbackFailed": "errors",
    "ClosedError": "errors",
    "Config": "training",
    "Constant": "training",
    "DQN": "algos",
    "Environment": "interfaces",
    "Diverged": "errors",
    "EnvironmentFailed": "errors",
    "Evaluation": "training",
    "EvaluationConfig": "training",
    "ExplorationConfig": "training",
    "Exponential": "training",
    "Field": "spec",
    "IQN": "algos",
    "LaneBusy": "errors",
    "LayoutMismatch": "errors",
    "LearnerConfig": "training",
    "Linear": "training",
    "LoadedPolicy": "training",
    "MAPPO": "algos",
    "MarlcoreError": "errors",
    "Metric": "processes",
    "MetricsConfig": "training",
    "Mixture": "replay",
    "NamedEnvironment": "envs",
    "NotEnoughData": "errors",
    "NotEnoughMemory": "errors",
    "Outcome": "interfaces",
    "PPO": "algos",
    "ParameterStore": "weights",
    "Piecewise": "training",
    "Prefetch": "replay",
    "Prioritized": "replay",
    "QueueSource": "interfaces",
    "R2D2": "algos",
    "RateLimiter": "replay",
    "RecurrentPPO": "algos",
    "ReplayBuffer": "replay",
    "ReplayConfig": "training",
    "ReplaySource": "interfaces",
    "Result": "training",
    "Run": "training",
    "SAC": "algos",
    "Sampler": "replay",
    "Schedule": "training",
    "SelfPlayConfig": "training",
    "SegmentCorrupt": "errors",
    "SegmentNotFound": "errors",
    "Sequence": "replay",
    "SharedMemoryFull": "errors",
    "Spaces": "spaces",
    "StaleHandle": "errors",
    "Status": "training",
    "SupervisionConfig": "training",
    "TD3": "algos",
    "Trainer": "interfaces",
    "TrajectoryQueue": "queue",
    "TrajectoryReader": "queue",
    "TransitionSpec": "spec",
    "TreasureHunt": "envs",
    "Turn": "interfaces",
    "Update": "interfaces",
    "UsedByTwoThreads": "errors",
    "VectorEnvironment": "interfaces",
    "VectorWriter": "transitions",
    "WorkerContext": "processes",
    "WorkerFailed": "errors",
    "Workers": "processes",
    "WorldModelFailed": "errors",
    "Writer": "transitions",
    "evaluate": "training",
    "load_policy": "training",
    "start": "training",
    "train": "training",
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
