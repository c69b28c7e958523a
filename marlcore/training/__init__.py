"""Training runs: configuration, actors and learners, the run directory, metrics and curves.

The other rooms meet here: `train` creates the shared memory, hands the roles to the supervisor and watches. This room
never touches a row or a lane itself. Each name imports its module on first use, because settings need no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import ActorConfig as ActorConfig
    from .config import Config as Config
    from .config import ExplorationConfig as ExplorationConfig
    from .config import LearnerConfig as LearnerConfig
    from .config import ReplayConfig as ReplayConfig
    from .config import SupervisionConfig as SupervisionConfig
    from .describe import described_run as described_run
    from .names import agent_of as agent_of
    from .progress import summary as summary
    from .run import Result as Result
    from .run import train as train
    from .run_directory import read_metrics as read_metrics
    from .tables import FittedTable as FittedTable
    from .warmup import compile_before_a_run as compile_before_a_run
    from .warmup import warm_up as warm_up

_HOME = {
    "ActorConfig": "config",
    "Config": "config",
    "ExplorationConfig": "config",
    "FittedTable": "tables",
    "LearnerConfig": "config",
    "ReplayConfig": "config",
    "Result": "run",
    "SupervisionConfig": "config",
    "agent_of": "names",
    "compile_before_a_run": "warmup",
    "described_run": "describe",
    "read_metrics": "run_directory",
    "summary": "progress",
    "train": "run",
    "warm_up": "warmup",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
