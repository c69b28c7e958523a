"""Makes and checks a run's spec: its policies, its environment and its settings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, TypeAlias

from ..checks import brief, check_type, check_whole, printable
from ..config import (
    SCRIPT,
    AssignedPolicy,
    Config,
    LearnerConfig,
    applied,
    applied_offline,
    assign,
    compiled_of,
    learner_names,
    source_of,
    teams_of,
    wants_teams,
    with_own_epsilons,
)
from ..devices import choose_device
from ..envs import factory, vectorize
from ..envs.copies import Copies
from ..envs.joint import JointObservations
from ..envs.team import Teams
from ..interfaces import OF_OUTCOMES, Algorithm, QueueSource, ReplaySource, VectorEnvironment
from ..loops import ScriptedPlayer, with_functions_of
from ..memory import SegmentHandle
from ..notices import say
from ..processes import check_picklable
from ..references import resolve
from ..replay import ReplayBuffer
from ..self_play import check_self_play, policies_in_self_play
from ..spaces import Spaces
from ..transitions import spec_difference

Algorithms: TypeAlias = Algorithm | str | Mapping[str, Algorithm | str]

OFFLINE = Config(learner=LearnerConfig(n_step=1))  # longer returns would be those of the policy that acted

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunSpec:
    """A checked run's environment, policies and settings; each worker gets a pickled copy."""

    env_fn: Callable[[], Any]  # makes an environment as the policies observe it
    policies: tuple[AssignedPolicy, ...]
    config: Config  # the settings that apply, with absolute paths
    recorded: Mapping[str, SegmentHandle] = field(default_factory=dict)  # recorded data, by policy

    @property
    def names(self) -> list[str]:
        """The names of the policies."""
        return [policy.name for policy in self.policies]

    @property
    def learners(self) -> dict[str, list[str]]:
        """The names of the policies that each learner process trains, by the process's name."""
        return learner_names(self.config, self.names)

    @property
    def acts_compiled(self) -> bool:
        """Whether actors and the evaluator need no torch: all policies are compiled, and no anchor is a checkpoint."""
        anchors = any(anchor.endswith(".pt") for anchor in self.config.self_play.anchors)
        return not anchors and all(policy.compiled is not None for policy in self.policies)

    @property
    def begins_untrained(self) -> bool:
        """Whether a new run's actors begin before its learners, with weights that the parent publishes and saves.

        Actors without a rate limiter begin later: they could take all steps before the learner's first update.
        """
        config = self.config
        free = any(isinstance(policy.source, ReplaySource) and config.is_free(policy.name) for policy in self.policies)
        apart = config.self_play.pool or config.cluster.seats or config.offline
        return config.mode == "async" and not apart and not free and self.acts_compiled

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "policies": tuple(policy.for_a_worker() for policy in self.policies)}


def acting_spec(env_fn: Callable[[], Any] | str, algorithm: Algorithms, config: Config) -> RunSpec:
    """Returns the spec of a run whose actors play in the environment. Raises ValueError, TypeError."""
    if config.offline:
        raise ValueError("actor.processes: expected an integer of at least 1, got 0, which is for train_offline")
    spec = assigned(factory(env_fn), algorithm, config)
    _check_policies(spec)
    if any(getattr(policy.algorithm, "imitates", False) for policy in spec.policies):
        raise ValueError("algorithm: expected an algorithm that uses rewards, got one that imitates; use train_offline")
    return _checked(spec)


def recorded_spec(
    replay: ReplayBuffer | Mapping[str, ReplayBuffer], updates: int,
    env_fn: Callable[[], Any] | str | Spaces, algorithm: Algorithms, config: Config,
) -> RunSpec:  # fmt: skip
    """Makes the spec of a run on recorded data, `updates` per policy. Raises ValueError, TypeError, NotEnoughData."""
    check_whole("updates", updates)
    config = applied_offline(config)
    if isinstance(env_fn, Spaces):
        spec = _assigned_to_spaces(env_fn, algorithm, config)
    else:
        spec = assigned(factory(env_fn), algorithm, config)
    spec = replace(spec, config=replace(spec.config, total_steps=updates * len(spec.policies)))
    _check_policies(spec)
    return _checked(_with_data(spec, replay))


def assigned(make_env: Callable[[], Any], algorithm: Algorithms, config: Config) -> RunSpec:
    """Returns an unchecked spec: assigns policies to agents, and fills in settings that follow from the environment."""
    if config.replay.stack is None:
        stack = getattr(make_env, "stack", 1)  # it may be a method if `make_env` is an environment class
        config = replace(config, replay=replace(config.replay, stack=stack if isinstance(stack, int) else 1))
    for device in config.actor.devices:
        choose_device(device)
    make_env, config = _in_teams(make_env, algorithm, config)
    with closing(vectorize(make_env, 1)) as env:
        if config.self_play.pool:
            config = replace(config, policies=policies_in_self_play(config, env.agents))
        policies = _assign(env, algorithm, config)
        if _has_own_copies(env, make_env):
            config = replace(config, actor=replace(config.actor, envs=env.copies))
    spec = _with_joint_observations(RunSpec(make_env, policies, config), algorithm)
    return _with_sources(replace(spec, config=with_own_epsilons(spec.policies, config)))


def _assign(env: VectorEnvironment, algorithm: Algorithms, config: Config) -> tuple[AssignedPolicy, ...]:
    return assign(env.spaces, config.policies, algorithm, config.replay.frames, config.self_play)


def _with_sources(spec: RunSpec) -> RunSpec:
    policies = tuple(replace(policy, source=source_of(policy, spec.config)) for policy in spec.policies)
    return replace(spec, policies=policies)


def _in_teams(make_env: Callable[[], Any], algorithm: Algorithms, config: Config) -> tuple[Callable[[], Any], Config]:
    """Replaces agents by their teams in the environment and the settings, if the run has teams; returns both."""
    if config.teams is None and not wants_teams(algorithm):
        return make_env, config
    with closing(vectorize(make_env, 1)) as env:
        teams = teams_of(env.agents, config.teams)
    made = Teams(make_env, teams)
    made().close()  # raises ValueError if this kind of environment cannot have teams
    team_of = {member: team for team, members in teams.items() for member in members}
    for agent in config.policies if isinstance(config.policies, Mapping) else ():
        if agent in team_of and agent not in teams:
            raise ValueError(f"policies: expected the team {team_of[agent]!r} in place of its member, got {agent!r}")
    return made, config if config.teams is None else replace(config, teams=team_of)


def _with_joint_observations(spec: RunSpec, algorithm: Algorithms) -> RunSpec:
    """Adds joint observations to the spec's environment, for the agents whose critics take them.

    Raises ValueError if a policy of a league has no such critic: it would act on the joint observation.
    """
    joint = [policy.agents for policy in spec.policies if getattr(policy.algorithm, "wants_joint", False)]
    if not joint:
        return spec
    for policy in spec.policies if spec.config.self_play.roles else ():
        if not any(getattr(policy.algorithm, name, False) for name in ("wants_joint", "wants_team")):
            raise ValueError(
                "algorithm: expected an algorithm with teams or a joint critic for each policy of this league, "
                f"got {type(policy.algorithm).__name__} for {policy.name!r}"
            )
    make_env = JointObservations(spec.env_fn, tuple(dict.fromkeys(chain(*joint))))
    make_env().close()  # raises ValueError if this kind of environment has no joint observations
    with closing(vectorize(make_env, 1)) as env:
        return RunSpec(make_env, _assign(env, algorithm, spec.config), spec.config)


def _has_own_copies(env: VectorEnvironment, make_env: Callable[[], Any]) -> bool:
    """Whether `make_env` sets the number of copies itself; `env` is the result of asking it for one copy."""
    if env.copies > 1 or isinstance(env, Copies):
        return env.copies > 1
    with closing(vectorize(make_env, 2)) as two:
        return two.copies == 1


def _assigned_to_spaces(spaces: Spaces, algorithm: Algorithms, config: Config) -> RunSpec:
    """Returns an unchecked spec for these spaces; its `env_fn` is `no_environment`."""
    for name in ("interval", "seconds"):
        if value := getattr(config.evaluation, name):
            raise ValueError(f"evaluation.{name}: expected 0 without an environment, got {value}")
    policies = assign({"agent_0": replace(spaces, stack=1)}, config.policies, algorithm, config.replay.frames)
    return _with_sources(RunSpec(no_environment, policies, config))


def no_environment() -> None:
    """Raises ValueError; the `env_fn` of a run without an environment."""
    raise ValueError("env_fn: expected an environment, got a run on recorded data without one; pass env_fn=")


def _with_data(spec: RunSpec, replays: ReplayBuffer | Mapping[str, ReplayBuffer]) -> RunSpec:
    """Adds each policy's replay to the spec. Raises ValueError, TypeError, NotEnoughData if the replay does not fit."""
    if isinstance(replays, ReplayBuffer) and len(spec.names) == 1:
        replays = {spec.names[0]: replays}
    if not isinstance(replays, Mapping) or replays.keys() != {*spec.names}:
        several = len(spec.names) > 1
        expected = f"a dict of ReplayBuffers for the policies {spec.names}" if several else "a ReplayBuffer"
        raise TypeError(f"replay: expected {expected}, got {brief(replays)}")
    for policy in spec.policies:
        _check_data(replays[policy.name], policy, spec.config)
    return replace(spec, recorded={name: replays[name].handle for name in spec.names})


def _check_data(data: ReplayBuffer, policy: AssignedPolicy, config: Config) -> None:
    source, learner = policy.source, config.learner_of(policy.name)
    check_type("replay", data, ReplayBuffer, expected=f"a ReplayBuffer for {policy.name}")
    if isinstance(source, QueueSource):
        name = type(policy.algorithm).__name__
        raise ValueError(f"algorithm: expected an algorithm that learns from recorded data, got {name}")
    if data.limiter is not None:
        raise ValueError(f"replay: expected a replay without a limiter, got {data.limiter}")
    spec = replace(policy.transition, next_obs=data.spec.next_obs)
    extras = {name: field for name, field in data.spec.extras.items() if name in spec.extras}
    if (used := replace(data.spec, extras=extras)) != spec:
        raise ValueError(f"replay {spec_difference(spec, used)}")
    options: dict[str, Any] = {"n_step": source.n_step, "prioritized": source.prioritized, "sequence": source.sequence}
    batch = data.sampler(learner.batch_size, stack=config.replay.frames, min_size=1, **options).sample()
    actions = batch.action.reshape(-1, *policy.spaces.action_field.shape)
    refused = policy.spaces.first_refused(actions) if actions.dtype.kind in "iu" else None
    if refused is not None:
        raise ValueError(
            f"replay action: expected one of {policy.spaces.action}, counted from 0, got {actions[refused].tolist()}; "
            "`ReplayBuffer.from_episodes(action_space=)` shifts actions of spaces with another start"
        )


def _check_policies(spec: RunSpec) -> None:
    """Raises ValueError if settings name an unknown policy or a missing device; says which observations are unused."""
    for left_out in filter(None, dict.fromkeys(policy.spaces.left_out for policy in spec.policies)):
        reason = "since networks take no texts (which a wrapper may encode) and no empty arrays"
        say(f"observations: left out {', '.join(left_out)}, {reason}")
    spec.config.check_policies(spec.names)
    for name in spec.names:
        if name not in spec.config.cluster.learners:  # those machines check their own devices
            settings = spec.config.learner_of(name)
            if choose_device(settings.device).type != "cpu" and settings.engine == "compiled":
                raise ValueError(f"learner.device: expected cpu for learner.engine compiled, got {settings.device}")


def _checked(spec: RunSpec) -> RunSpec:
    """Checks the spec, and returns it with the settings that apply to its policies. Raises ValueError, TypeError."""
    config = applied(spec.policies, spec.config)
    for policy in spec.policies:
        if isinstance(policy.source, ReplaySource) and policy.source.hindsight is not None:
            with closing(spec.env_fn()) as env:  # raises ValueError if the environment has no goals or goal rewards
                with_functions_of(env, policy.source.hindsight, policy.transition)
        _check_script(policy, config)
    for policy in spec.policies if config.self_play.pool else ():
        check_self_play(config, policy)
    check_picklable(config=config, algorithm=[policy.algorithm for policy in spec.policies])  # since a run saves them
    if config.mode == "async":
        check_picklable(env_fn=spec.env_fn)
    policies = tuple(replace(policy, compiled=compiled_of(policy, config)) for policy in spec.policies)
    for policy in policies:
        if policy.compiled is None and config.learner_of(policy.name).engine == "compiled" and not config.offline:
            raise ValueError(f"actor.device: expected cpu for learner.engine compiled, got {config.actor.device}")
    return replace(spec, policies=policies, config=config)


def _check_script(policy: AssignedPolicy, config: Config) -> None:
    """Raises ValueError or TypeError if the setting names no usable script, or rows need extras that scripts lack."""
    script = config.of(policy.name).exploration.script
    if script is None:
        return
    ScriptedPlayer(SCRIPT, resolve(SCRIPT, script), policy.spaces, 1)
    if extras := policy.transition.extras.keys() - {*OF_OUTCOMES}:
        raise ValueError(
            f"{SCRIPT}: expected None for {policy.name!r}, since a script cannot compute "
            f"{', '.join(sorted(extras))}, which {type(policy.algorithm).__name__} stores, got {script!r}"
        )


def share_of(policy: AssignedPolicy, policies: tuple[AssignedPolicy, ...]) -> float:
    """Returns a policy's share of a run's steps, in (0, 1], as if every agent acted equally often."""
    return len(policy.agents) / sum(len(policy.agents) for policy in policies)


def warn_of_short_run(spec: RunSpec, taken: int) -> None:
    """Warns if a run ends before the warm-up of a replay, or before a queue's first batch.

    `taken`: the steps of a resumed run's earlier parts if their rows were not saved, otherwise 0.
    """
    left = spec.config.total_steps - taken
    steps_left = "steps that are left" if taken else "steps"
    for policy in spec.policies:
        steps, source = share_of(policy, spec.policies) * left, policy.source
        label, needed = "learner.warmup", spec.config.learner_of(policy.name).warmup + 1
        if isinstance(source, QueueSource):
            label, needed = "the algorithm's batch_size", source.batch_size * (source.length or 1)
        if 0 < steps < needed:
            log.warning(
                "%s: %s takes %s of the %d %s, fewer than the %d that it needs to begin to learn",
                label, printable(policy.name), f"{steps:.1f}".removesuffix(".0"), left, steps_left, needed,
            )  # fmt: skip


def warn_of_few_samples(spec: RunSpec, steps: int, updates: Mapping[str, int]) -> None:
    """Warns if a run without a fixed ratio drew each transition of a policy less than once on average."""
    for policy in spec.policies:
        inserted, learner = share_of(policy, spec.policies) * steps, spec.config.learner_of(policy.name)
        queued = isinstance(policy.source, QueueSource)  # a queue's reader reads each transition once
        if queued or spec.recorded or not spec.config.is_free(policy.name) or inserted <= learner.warmup:
            continue
        ratio = updates[policy.name] * learner.batch_size / inserted
        if ratio < 1.0:
            log.warning(
                "updates_per_step: %s trained on %.2g samples for each of its steps, since no ratio was set; "
                "set one, such as %g",
                printable(policy.name), ratio, Config.updates_per_step,
            )  # fmt: skip
