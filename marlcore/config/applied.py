"""Sets to their defaults the settings that no policy of a run uses, with a notice for each.

So one configuration serves algorithms of different kinds.
"""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any

from ..checks import brief
from ..interfaces import MEMBER_REWARDS, QueueSource, ReplaySource
from ..notices import say
from .config import BY_POLICY, RUN_WIDE, SECTIONS, ActorConfig, Config, ReplayConfig
from .policies import AssignedPolicy, schedules_of

OF_LEARNER = [f"learner.{name}" for name in ("batch_size", "n_step", "warmup", "prefetch", "publish_interval")]
OF_RUN = ("updates_per_step", "updates_tolerance")
OF_PULLS = ("actor.sync_interval", "actor.max_policy_lag")
OF_EXPLORATION = ("exploration.epsilon", "exploration.ladder")
OF_REPLAY = [f"replay.{name}" for name in ReplayConfig.__dataclass_fields__ if name not in ("stack", "pad")]
OF_ACTING = (
    *("total_steps", "stages", "stage_names", "self_play", "stop.episodes", "learner.warmup"),
    *(f"actor.{name}" for name in ActorConfig.__dataclass_fields__ if name != "device"),  # the evaluator's device
    *(f"replay.{name}" for name in ("capacity", "save", "clear_at_stage", "mixture", "path", "durable", "hindsight")),
)
READS_ONCE = "reads each transition once"
RECORDED = "a run on recorded data has no use for it"


def applied(policies: tuple[AssignedPolicy, ...], config: Config) -> Config:
    """Resets the settings that no policy uses. Raises ValueError if a replay is too small, or if settings conflict."""
    for algorithm in {id(policy.algorithm): policy.algorithm for policy in policies}.values():
        for name, why in getattr(algorithm, "unused", {}).items():
            say(f"algorithm.{name}: {brief(getattr(algorithm, name))} has no effect without {why}")
    for policy in policies:
        if isinstance(policy.source, QueueSource):
            if policy.name in config.ratios:
                ratios = {**config.ratios}
                say(f"ratios.{policy.name}: {ratios.pop(policy.name)} has no effect, since {_of(policy, READS_ONCE)}")
                config = replace(config, ratios=ratios)
            continue
        if config.mode == "serial" and config.ratios.get(policy.name, 0) is None:
            raise ValueError(f"ratios.{policy.name}: expected a number in serial mode, got None")
        if not config.offline:
            _check_rows(policy, policy.source, config)
        if policy.source.hindsight is not None and policy.source.n_step != 1:
            raise ValueError(f"learner.n_step: expected 1 when replay.hindsight is set, got {policy.source.n_step}")
    each = {policy.name: _unused(policy, config) for policy in policies}
    names = {name for unused in each.values() for name in unused}
    used = {_label(name, policy, config) for policy, unused in each.items() for name in names - unused.keys()}
    by_label = {_label(name, policy, config): why for policy in reversed(each) for name, why in each[policy].items()}
    return _without(config, {label: why for label, why in by_label.items() if label not in used} | _run_wide(config))


def applied_offline(config: Config) -> Config:
    """Resets the settings of acting, which a run on recorded data does not use.

    Raises ValueError if there is a cluster, or if the run's stop condition is a metric of actors' episodes.
    """
    if config.cluster.address is not None:
        raise ValueError(f"cluster.address: expected None, since {RECORDED}, got {brief(config.cluster.address)}")
    if config.stop.judges and config.stop.of_episodes:
        raise ValueError(f"stop.metric: expected a metric of a run without actors, got {brief(config.stop.metric)}")
    names = (*OF_RUN, *OF_ACTING, *OF_EXPLORATION)
    labels = {_label(name, policy, config) for by in BY_POLICY for policy in getattr(config, by) for name in names}
    config = _without(config, dict.fromkeys((*names, *sorted(labels)), RECORDED))
    learners = {name: replace(learner, warmup=1) for name, learner in config.learners.items()}
    learner, actor = replace(config.learner, warmup=1), replace(config.actor, processes=0)
    return replace(config, actor=actor, learner=learner, learners=learners)


def _run_wide(config: Config) -> dict[str, str]:
    """Returns policies' own settings that differ from a setting which all policies share, each with the reason."""
    return {
        f"{by}.{policy}.{name}": f"all policies have {section}.{name}"
        for by, section in SECTIONS.items()
        for policy, of_policy in (getattr(config, by).items() if section in RUN_WIDE else ())
        for name in RUN_WIDE[section]
        if getattr(of_policy, name) != getattr(getattr(config, section), name)
    }


def _check_rows(policy: AssignedPolicy, source: ReplaySource, config: Config) -> None:
    from ..transitions import Window  # here, so that settings load without Numba

    replay, warmup = config.of(policy.name).replay, config.learner_of(policy.name).warmup
    spec = policy.transition
    least = Window(replay.frames, source.n_step, sequence=source.sequence).least_rows(spec)
    need = -(-least // spec.state_every) * spec.state_every
    lanes = config.lanes * len(policy.agents) * replay.parts
    if replay.capacity // lanes < need:
        fits = f"stack + n_step = {replay.frames} + {source.n_step}" if source.sequence is None else "a whole window's"
        raise ValueError(
            f"replay.capacity: expected at least {lanes * need}, so that a lane holds {fits} rows; rows of a lane are "
            f"capacity / (actors x envs x agents of a policy x parts) = {replay.capacity} / {lanes}, "
            f"got {replay.capacity}"
        )
    rows = replay.capacity // lanes // spec.state_every * spec.state_every * lanes
    if warmup > rows:
        raise ValueError(f"learner.warmup: expected at most a replay's {rows} rows (replay.capacity), got {warmup}")


def _unused(policy: AssignedPolicy, config: Config) -> dict[str, str]:
    """Returns the settings that a policy does not use, as section.name, each with the reason."""
    unused: dict[str, str] = {}
    if "epsilon" not in schedules_of(policy.algorithm, config.of(policy.name)):
        unused |= dict.fromkeys(OF_EXPLORATION, _of(policy, "draws its actions without an epsilon"))
    if isinstance(policy.source, QueueSource):
        unused |= dict.fromkeys(OF_PULLS, _of(policy, "acts with the newest weights in every round"))
        of_queues = ("replay.path", "replay.durable") if config.replay.durable else ()
        names = {*OF_RUN, *OF_LEARNER, *OF_REPLAY}.difference(of_queues)
        return unused | dict.fromkeys(sorted(names), _of(policy, READS_ONCE))
    if policy.source.hindsight is None:
        unused["replay.hindsight"] = _of(policy, "draws its batches without it")
    by_member = MEMBER_REWARDS in policy.transition.extras
    returns = "learns from each member's own reward of one step" if by_member else "makes its returns itself"
    if policy.source.n_step != config.learner_of(policy.name).n_step:
        unused["learner.n_step"] = _of(policy, returns)
    if by_member:
        unused["learner.reward_norm"] = _of(policy, returns)
    return unused


def _of(policy: AssignedPolicy, why: str) -> str:
    return f"{type(policy.algorithm).__name__}, the algorithm of {policy.name!r}, {why}"


def _label(name: str, policy: str, config: Config) -> str:
    """Returns a setting's name for a policy: learners.guard.n_step if the policy has its own section, else `name`."""
    section, _, last = name.rpartition(".")
    for by in BY_POLICY:
        if SECTIONS[by] == section and policy in getattr(config, by) and last not in RUN_WIDE.get(section, ()):
            return f"{by}.{policy}.{last}"
    return name


def _without(config: Config, unused: Mapping[str, str]) -> Config:
    """Resets unused settings, given with reasons by dotted name; a notice says why each changed one has no effect."""
    default = Config().changed({by: dict.fromkeys(getattr(config, by), kind()) for by, kind in BY_POLICY.items()})
    values: dict[str, Any] = {}
    for name, why in unused.items():
        value, usual = _value(config, name), _value(default, name)
        if value != usual:
            say(f"{name}: {brief(value)} has no effect, since {why}")
            values[name] = usual
    return config.changed(values)


def _value(config: Config, name: str) -> Any:
    prefix, _, last = name.rpartition(".")
    by, _, policy = prefix.partition(".")
    return getattr(getattr(config, by)[policy], last) if by in BY_POLICY else attrgetter(name)(config)
