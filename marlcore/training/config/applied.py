"""Which settings apply to a run: those that nothing uses are told, and count as their defaults.

So one configuration serves algorithms of different kinds.
"""

from collections.abc import Iterable, Mapping
from operator import attrgetter
from typing import Any

from ...checks import brief
from ...declared import changed
from ...interfaces import MEMBER_REWARDS, QueueSource, ReplaySource
from ...notices import say
from .config import ActorConfig, Config, LearnerConfig, ReplayConfig
from .policies import AssignedPolicy, schedules_of

OF_LEARNER = ("batch_size", "n_step", "warmup", "prefetch", "publish_interval")
OF_RUN = ("updates_per_step", "updates_tolerance")
OF_PULLS = ("actor.sync_interval", "actor.max_policy_lag")
OF_EXPLORATION = ("exploration.epsilon", "exploration.ladder")
OF_REPLAY = [f"replay.{name}" for name in ReplayConfig.__dataclass_fields__ if name not in ("stack", "pad")]
OF_ACTING = (
    *("total_steps", "stages", "stage_names", "self_play", "stop.episodes", "learner.warmup"),
    *(f"actor.{name}" for name in ActorConfig.__dataclass_fields__ if name != "device"),  # on which an evaluator acts
    *(f"replay.{name}" for name in ("capacity", "save", "clear_at_stage", "mixture", "path", "hindsight")),
)
READS_ONCE = "reads each transition once"
RECORDED = "a run on recorded data has no use for it"


def applied(policies: tuple[AssignedPolicy, ...], config: Config) -> Config:
    """The settings, with those that apply to no policy at their defaults.

    Raises ValueError: a replay has too few rows, or settings exclude each other.
    """
    for policy in policies:
        if not isinstance(policy.source, QueueSource):
            if not config.offline:
                _check_rows(policy, policy.source, config)
            if policy.source.hindsight is not None and policy.source.n_step != 1:
                raise ValueError(f"learner.n_step: expected 1 with replay.hindsight, got {policy.source.n_step}")
    _tell_of_learners(policies, config)
    unused: dict[str, str] = {}
    if all(isinstance(policy.source, QueueSource) for policy in policies):
        unused |= dict.fromkeys((*OF_RUN, *OF_REPLAY), _of(policies[0], READS_ONCE))
        unused |= dict.fromkeys(OF_PULLS, _of(policies[0], "acts with the newest weights in every round"))
    elif not any(getattr(policy.source, "hindsight", None) for policy in policies):
        unused["replay.hindsight"] = _of(policies[0], "draws its batches without it")
    if not any("epsilon" in schedules_of(policy.algorithm, config.of(policy.name)) for policy in policies):
        unused |= dict.fromkeys(OF_EXPLORATION, _of(policies[0], "draws its actions without an epsilon"))
    return _without(config, unused)


def applied_offline(config: Config) -> Config:
    """The settings, with those of acting, and of a replay that a run makes, at their defaults.

    Raises ValueError: there is a cluster, or a condition to stop is of actors' episodes.
    """
    if config.cluster.address is not None:
        raise ValueError(f"cluster.address: expected None, since {RECORDED}, got {brief(config.cluster.address)}")
    if config.stop.judges and any(part.startswith("episode_") for part in config.stop.metric.split("/")):
        raise ValueError(
            f"stop.metric: expected one of a run without actors' episodes, got {brief(config.stop.metric)}"
        )
    for name, learner in config.learners.items():
        _differs(f"learners.{name}.warmup", learner.warmup, LearnerConfig().warmup, RECORDED)
    return _without(config, dict.fromkeys((*OF_RUN, *OF_ACTING, *OF_EXPLORATION), RECORDED))


def _check_rows(policy: AssignedPolicy, source: ReplaySource, config: Config) -> None:
    """Raises ValueError: a policy's replay has too few rows."""
    from ...transitions import Window  # here, so that settings load without Numba

    replay, warmup = config.of(policy.name).replay, config.learner_of(policy.name).warmup
    spec = policy.algorithm.transition(policy.spaces)
    least = Window(replay.frames, source.n_step, sequence=source.sequence).least_rows(spec)
    need = -(-least // spec.state_every) * spec.state_every
    lanes = config.lanes * len(policy.agents) * replay.parts
    if replay.capacity // lanes < need:
        held = f"stack + n_step = {replay.frames} + {source.n_step}" if source.sequence is None else "a whole window's"
        raise ValueError(
            f"replay.capacity: expected at least {lanes * need}, so that a lane holds {held} rows; rows of a lane are "
            f"capacity / (actors x envs x agents of a policy x parts) = {replay.capacity} / {lanes}, "
            f"got {replay.capacity}"
        )
    rows = replay.capacity // lanes // spec.state_every * spec.state_every * lanes
    if warmup > rows:
        raise ValueError(
            f"learner.warmup: expected at most the {rows} rows that replay.capacity gives a replay, got {warmup}"
        )


def _tell_of_learners(policies: Iterable[AssignedPolicy], config: Config) -> None:
    """Tells of settings of learners that none of their policies uses."""
    groups: dict[str, list[AssignedPolicy]] = {}
    for policy in policies:
        section = f"learners.{policy.name}" if policy.name in config.learners else "learner"
        groups.setdefault(section, []).append(policy)
    for section, group in groups.items():
        first, *others = (_unused_of_learner(policy, config) for policy in group)
        learner, usual = config.learner_of(group[0].name), LearnerConfig()
        for name in first:
            if all(name in other for other in others):
                _differs(f"{section}.{name}", getattr(learner, name), getattr(usual, name), first[name])


def _unused_of_learner(policy: AssignedPolicy, config: Config) -> dict[str, str]:
    """The settings of its learner that a policy does not use, and why."""
    if isinstance(policy.source, QueueSource):
        return dict.fromkeys(OF_LEARNER, _of(policy, READS_ONCE))
    returns = [] if policy.source.n_step == config.learner_of(policy.name).n_step else ["n_step"]
    if MEMBER_REWARDS not in policy.algorithm.transition(policy.spaces).extras:
        return dict.fromkeys(returns, _of(policy, "makes its returns itself"))
    return dict.fromkeys([*returns, "reward_norm"], _of(policy, "learns from each member's own reward of one step"))


def _of(policy: AssignedPolicy, why: str) -> str:
    return f"{type(policy.algorithm).__name__}, the algorithm of {policy.name!r}, {why}"


def _without(config: Config, unused: Mapping[str, str]) -> Config:
    """The settings with the unused ones, by dotted name, at their defaults; tells of those that differ, and why."""
    usual = {name: attrgetter(name)(Config()) for name in unused}
    return changed(
        config,
        {name: usual[name] for name in usual if _differs(name, attrgetter(name)(config), usual[name], unused[name])},
    )


def _differs(name: str, value: Any, usual: Any, why: str) -> bool:
    """Whether an unused setting differs from its default; then says so."""
    if value == usual:
        return False
    say(f"{name}: {brief(value)} has no effect, since {why}")
    return True
