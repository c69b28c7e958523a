"""Settings that do not apply to a policy's algorithm: refused, instead of ignored in silence."""

from __future__ import annotations

from typing import Any

from ..interfaces import QueueSource
from .blueprint import schedules_of
from .config import Config, ExplorationConfig, LearnerConfig, ReplayConfig
from .memories import source_of
from .policies import AssignedPolicy

__all__ = ["check_on_policy"]

OF_LEARNER = ("batch_size", "n_step", "warmup", "prefetch", "publish_interval")
OF_RUN = ("updates_per_step", "updates_tolerance")
OF_EXPLORATION = ("epsilon", "ladder")
APPLY = ("stack", "pad")  # of the replay's settings


def check_on_policy(policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Raises ValueError: a setting differs from its default although it applies to none of the run's policies."""
    queued = 0
    for policy in policies:
        source, learner = source_of(policy, config), config.learner_of(policy.name)
        if isinstance(source, QueueSource):
            queued += 1
            _check("learner", OF_LEARNER, learner, LearnerConfig(), policy)
        elif source.n_step != learner.n_step:
            _check("learner", ("n_step",), learner, LearnerConfig(), policy, "makes its returns itself")
    if queued == len(policies):
        _check("", OF_RUN, config, Config(), policies[0])
        rest = [name for name in ReplayConfig.__dataclass_fields__ if name not in APPLY]
        _check("replay", rest, config.replay, ReplayConfig(), policies[0])
    if not any("epsilon" in schedules_of(policy.algorithm, config) for policy in policies):
        why = "draws its actions without an epsilon"
        _check("exploration", OF_EXPLORATION, config.exploration, ExplorationConfig(), policies[0], why)


def _check(
    section: str,
    names: tuple[str, ...] | list[str],
    given: Any,
    default: Any,
    policy: AssignedPolicy,
    why: str = "reads each transition once and has no use for it",
) -> None:
    for name in names:
        had, usual = getattr(given, name), getattr(default, name)
        if had != usual:
            label, kind = f"{section}.{name}" if section else name, type(policy.algorithm).__name__
            raise ValueError(
                f"{label}: expected the default {usual!r}, since {kind}, the algorithm of {policy.name!r}, {why}, "
                f"got {had!r}"
            )
