"""A run's settings: dataclasses that check their own values, schedules, files of settings, and policies by agent.

This package does not import torch.
"""

from .applied import applied, applied_offline
from .cluster import ClusterConfig
from .config import (
    BY_POLICY,
    SECTIONS,
    ActorConfig,
    Config,
    EvaluationConfig,
    ExplorationConfig,
    LearnerConfig,
    MetricsConfig,
    ReplayConfig,
    StopConfig,
    SupervisionConfig,
    hints_by_policy,
)
from .crews import Crew, actor_names, crews, node_names
from .policies import (
    EVALUATOR,
    SCRIPT,
    AssignedPolicy,
    assign,
    compiled_of,
    hides_joint,
    learner_names,
    numbers_at,
    policy_names,
    schedules_of,
    source_of,
    teams_of,
    wants_teams,
    with_own_epsilons,
)
from .population import Choice, Distribution, LogUniform, PopulationConfig, Uniform
from .schedules import PUBLISHED, Constant, Custom, Exponential, Linear, Piecewise, Schedule, is_custom
from .sections import EPSILON, EVALUATED, SINKS
from .self_play import BOTH, DRAWS, MAIN, MAIN_EXPLOITER, SelfPlayConfig
from .settings_file import PRESETS, Settings, preset_names, read_preset, read_settings
