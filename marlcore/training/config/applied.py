"""A run's settings as an algorithm takes them: source of batches, schedules, and settings that do not apply to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ...interfaces import Algorithm, QueueSource, ReplaySource
from .config import Config, ExplorationConfig, LearnerConfig, ReplayConfig
from .policies import AssignedPolicy
from .schedules import Schedule
from .sections import EPSILON

OF_LEARNER = ("batch_size", "n_step", "warmup", "prefetch", "publish_interval")
OF_RUN = ("updates_per_step", "updates_tolerance")
OF_EXPLORATION = ("epsilon", "ladder")
OF_REPLAY = [name for name in ReplayConfig.__dataclass_fields__ if name not in ("stack", "pad")]


def source_of(policy: AssignedPolicy, config: Config) -> ReplaySource | QueueSource:
    """How the policy's learner gets its batches. Raises TypeError: its algorithm says something else."""
    chosen = ReplaySource(config.learner_of(policy.name).n_step, config.replay.priorities)
    source = policy.algorithm.source(chosen)
    if not isinstance(source, (ReplaySource, QueueSource)):
        raise TypeError(f"source of {policy.name}: expected a ReplaySource or a QueueSource, got {source!r}")
    return source


def schedules_of(algorithm: Algorithm, config: Config) -> dict[str, Schedule]:
    """The numbers that a policy's learner publishes with its weights, by name.

    On-policy algorithms draw their actions, so there is an epsilon for them only if they name one themselves.

    Raises: ValueError, TypeError: one of the algorithm's is no schedule.
    """
    own: Mapping[str, Any] = getattr(algorithm, "schedules", dict)()  # an algorithm need not derive from Algorithm
    schedules = {name: Schedule.from_value(name, value) for name, value in own.items()} | config.schedules
    if "epsilon" in own or not isinstance(algorithm.source(ReplaySource()), QueueSource):
        return {"epsilon": EPSILON} | schedules
    schedules.pop("epsilon", None)
    return schedules


def check_applied(policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Raises ValueError: a setting differs from its default although it applies to none of the run's policies."""
    queued = 0
    for policy in policies:
        source, learner = source_of(policy, config), config.learner_of(policy.name)
        if isinstance(source, QueueSource):
            queued += 1
            _check("learner.", OF_LEARNER, learner, LearnerConfig(), policy)
        elif source.n_step != learner.n_step:
            _check("learner.", ("n_step",), learner, LearnerConfig(), policy, "makes its returns itself")
    if queued == len(policies):
        _check("", OF_RUN, config, Config(), policies[0])
        _check("replay.", OF_REPLAY, config.replay, ReplayConfig(), policies[0])
    if not any("epsilon" in schedules_of(policy.algorithm, config) for policy in policies):
        why = "draws its actions without an epsilon"
        _check("exploration.", OF_EXPLORATION, config.exploration, ExplorationConfig(), policies[0], why)


def _check(
    section: str,
    names: Iterable[str],
    given: Any,
    default: Any,
    policy: AssignedPolicy,
    why: str = "reads each transition once and has no use for it",
) -> None:
    for name in names:
        value, usual = getattr(given, name), getattr(default, name)
        if value != usual:
            algorithm = f"{type(policy.algorithm).__name__}, the algorithm of {policy.name!r}, {why}"
            raise ValueError(f"{section}{name}: expected the default {usual!r}, since {algorithm}, got {value!r}")
