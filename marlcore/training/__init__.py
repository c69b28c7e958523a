"""Training runs: configuration, actors and learners, the run directory, metrics and curves.

The other rooms meet here: `train` creates the shared memory, hands the roles to the supervisor and watches. This room
never touches a row or a lane itself. Each name imports its module on first use, because settings need no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import imported_on_use

if TYPE_CHECKING:
    from .after import EvaluatedRun as EvaluatedRun
    from .after import LoadedPolicy as LoadedPolicy
    from .after import evaluate as evaluate
    from .after import load_policy as load_policy
    from .config import EVALUATOR as EVALUATOR
    from .config import ActorConfig as ActorConfig
    from .config import Config as Config
    from .config import Constant as Constant
    from .config import Custom as Custom
    from .config import EvaluationConfig as EvaluationConfig
    from .config import ExplorationConfig as ExplorationConfig
    from .config import Exponential as Exponential
    from .config import LearnerConfig as LearnerConfig
    from .config import Linear as Linear
    from .config import MetricsConfig as MetricsConfig
    from .config import Piecewise as Piecewise
    from .config import ReplayConfig as ReplayConfig
    from .config import Schedule as Schedule
    from .config import SelfPlayConfig as SelfPlayConfig
    from .config import Settings as Settings
    from .config import SupervisionConfig as SupervisionConfig
    from .config import is_learner as is_learner
    from .config import names_of as names_of
    from .config import policy_of as policy_of
    from .config import read_settings as read_settings
    from .loops import Evaluation as Evaluation
    from .loops import play as play
    from .record import Sink as Sink
    from .record import Status as Status
    from .record import agent_order as agent_order
    from .record import described_run as described_run
    from .record import has_all_steps as has_all_steps
    from .record import has_ended as has_ended
    from .record import read_metrics as read_metrics
    from .record import summary as summary
    from .run import Result as Result
    from .run import Run as Run
    from .run import start as start
    from .run import train as train
    from .seeds import train_seeds as train_seeds
    from .warmup import compile_before_a_run as compile_before_a_run
    from .warmup import warm_up as warm_up

_HOME = {
    "ActorConfig": "config",
    "Config": "config",
    "Constant": "config",
    "Custom": "config",
    "EVALUATOR": "config",
    "EvaluatedRun": "after",
    "Evaluation": "loops",
    "EvaluationConfig": "config",
    "ExplorationConfig": "config",
    "Exponential": "config",
    "LearnerConfig": "config",
    "Linear": "config",
    "LoadedPolicy": "after",
    "MetricsConfig": "config",
    "Piecewise": "config",
    "ReplayConfig": "config",
    "Result": "run",
    "Run": "run",
    "Schedule": "config",
    "SelfPlayConfig": "config",
    "Settings": "config",
    "Sink": "record",
    "Status": "record",
    "SupervisionConfig": "config",
    "agent_order": "record",
    "compile_before_a_run": "warmup",
    "described_run": "record",
    "evaluate": "after",
    "has_all_steps": "record",
    "has_ended": "record",
    "is_learner": "config",
    "load_policy": "after",
    "names_of": "config",
    "play": "loops",
    "policy_of": "config",
    "read_metrics": "record",
    "read_settings": "config",
    "start": "run",
    "summary": "record",
    "train": "run",
    "train_seeds": "seeds",
    "warm_up": "warmup",
}

__all__ = sorted(_HOME)

__getattr__ = imported_on_use(__name__, _HOME)
