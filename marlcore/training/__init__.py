"""Training runs: configuration, actors and learners, the run directory, metrics and curves.

The other rooms meet here: `train` creates the shared memory, hands the roles to the supervisor and watches. This room
never touches a row or a lane itself. Each name imports its module on first use, because settings need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import imported_on_use

if TYPE_CHECKING:
    from .config import ActorConfig as ActorConfig
    from .config import Config as Config
    from .config import EvaluationConfig as EvaluationConfig
    from .config import ExplorationConfig as ExplorationConfig
    from .config import LearnerConfig as LearnerConfig
    from .config import MetricsConfig as MetricsConfig
    from .config import ReplayConfig as ReplayConfig
    from .config import SelfPlayConfig as SelfPlayConfig
    from .config import SupervisionConfig as SupervisionConfig
    from .config_file import Settings as Settings
    from .config_file import names_of as names_of
    from .config_file import read_settings as read_settings
    from .describe import described_run as described_run
    from .episodes import play as play
    from .evaluate_run import EvaluatedRun as EvaluatedRun
    from .evaluate_run import evaluate as evaluate
    from .evaluation import Evaluation as Evaluation
    from .loaded import LoadedPolicy as LoadedPolicy
    from .loaded import load_policy as load_policy
    from .monitor import Status as Status
    from .names import EVALUATOR as EVALUATOR
    from .names import is_learner as is_learner
    from .names import policy_of as policy_of
    from .progress import summary as summary
    from .run import Result as Result
    from .run import Run as Run
    from .run import start as start
    from .run import train as train
    from .run_directory import agent_order as agent_order
    from .run_directory import has_all_steps as has_all_steps
    from .run_directory import has_ended as has_ended
    from .schedules import Constant as Constant
    from .schedules import Custom as Custom
    from .schedules import Exponential as Exponential
    from .schedules import Linear as Linear
    from .schedules import Piecewise as Piecewise
    from .schedules import Schedule as Schedule
    from .seeds import train_seeds as train_seeds
    from .sinks import Sink as Sink
    from .sinks import read_metrics as read_metrics
    from .tables import FittedTable as FittedTable
    from .warmup import compile_before_a_run as compile_before_a_run
    from .warmup import warm_up as warm_up

_HOME = {
    "ActorConfig": "config",
    "Config": "config",
    "Settings": "config_file",
    "Constant": "schedules",
    "Custom": "schedules",
    "EVALUATOR": "names",
    "EvaluatedRun": "evaluate_run",
    "Evaluation": "evaluation",
    "EvaluationConfig": "config",
    "Exponential": "schedules",
    "ExplorationConfig": "config",
    "FittedTable": "tables",
    "LearnerConfig": "config",
    "Linear": "schedules",
    "LoadedPolicy": "loaded",
    "MetricsConfig": "config",
    "Piecewise": "schedules",
    "ReplayConfig": "config",
    "Result": "run",
    "Run": "run",
    "Schedule": "schedules",
    "SelfPlayConfig": "config",
    "Sink": "sinks",
    "Status": "monitor",
    "SupervisionConfig": "config",
    "agent_order": "run_directory",
    "compile_before_a_run": "warmup",
    "described_run": "describe",
    "evaluate": "evaluate_run",
    "has_all_steps": "run_directory",
    "has_ended": "run_directory",
    "is_learner": "names",
    "load_policy": "loaded",
    "play": "episodes",
    "policy_of": "names",
    "names_of": "config_file",
    "read_settings": "config_file",
    "read_metrics": "sinks",
    "start": "run",
    "summary": "progress",
    "train": "run",
    "train_seeds": "seeds",
    "warm_up": "warmup",
}

__all__ = sorted(_HOME)

__getattr__ = imported_on_use(__name__, _HOME)
