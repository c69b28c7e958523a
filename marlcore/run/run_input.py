"""The input of a run, checked before anything of it exists."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from ..checks import absolute, check_type, printable
from ..config import (
    SCRIPT,
    AssignedPolicy,
    Config,
    applied,
    assign,
    source_of,
    teams_of,
    wants_teams,
    with_own_epsilons,
)
from ..envs import factory, vectorize
from ..envs.copies import Copies
from ..envs.joint import JointObservations
from ..envs.team import Teams
from ..interfaces import OF_OUTCOMES, Algorithm, QueueSource, ReplaySource, VectorEnvironment
from ..loops import ScriptedPlayer, choose_device, with_functions_of
from ..memory import SegmentHandle
from ..notices import say, shown_with
from ..processes import check_picklable
from ..record import RUNS, Callback, InitFrom, check_callback, fetch_run, initial_states, located, steps_taken
from ..references import resolve
from ..replay import ReplayBuffer
from ..self_play import check_self_play, policies_in_self_play
from ..spaces import Spaces
from .offline import OFFLINE, handles_of, offline_config
from .warmup import compile_before_a_run

Algorithms: TypeAlias = Algorithm | str | Mapping[str, Algorithm | str]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunInput:
    """A run's input: settings with absolute paths, and the absolute parent of directories without a name."""

    env_fn: Callable[[], Any]
    policies: tuple[AssignedPolicy, ...]
    config: Config
    runs: Path
    resume: Path | None
    callback: Callback | None
    progress: bool
    replays: Mapping[str, SegmentHandle]  # recorded data, by policy
    initial: Mapping[str, Mapping[str, Any]]  # by policy: the state of a checkpoint from which it starts
    init_strict: bool
    remote: str | None  # the address to which the run's directory is copied
    plots: bool  # curves at the end

    @classmethod
    def checked(
        cls, env_fn: Callable[[], Any] | str | Spaces, algorithm: Algorithms, config: Config | None = None,
        progress: bool = False, resume: str | Path | None = None, callback: Callback | None = None,
        init_from: InitFrom | None = None, init_strict: bool = True,
        data: tuple[ReplayBuffer | Mapping[str, ReplayBuffer], int] | None = None, plots: bool = True,
    ) -> RunInput:  # fmt: skip
        """The input of a run with the arguments of `train`, or with the `data` (replay, updates) of `train_offline`.

        Compiles the kernels if they never were. Raises: ValueError, TypeError.
        """
        check_type("config", config, Config, or_none=True)
        check_callback(callback)
        config = config or (Config() if data is None else OFFLINE)
        config, here, remote = located(config, resume)  # first: an environment may change the directory
        if data is None and config.offline:
            raise ValueError("actor.processes: expected an integer of at least 1, got 0; see train_offline")
        runs = absolute(RUNS) if here is None and config.run_dir is None else Path(RUNS)
        with shown_with(progress):
            config = config if data is None else offline_config(config, data[1])
            if data is not None and isinstance(env_fn, Spaces):
                make_env, policies = _assigned_to_data(env_fn, algorithm, config)
            else:
                make_env, policies, config = assigned(factory(env_fn), algorithm, config)
            for left_out in filter(None, dict.fromkeys(policy.spaces.left_out for policy in policies)):
                reason = "since no network takes a text, which a wrapper may encode, or an empty array"
                say(f"observations: left out {', '.join(left_out)}, {reason}")
            names = [policy.name for policy in policies]
            if data is not None:
                config = replace(config, total_steps=data[1] * len(names))
            initial = initial_states(init_from, names)
            config.check_policies(names)
            for policy in policies:
                if policy.name not in config.cluster.learners:  # whose machine is asked
                    choose_device(config.learner_of(policy.name).device)
            if data is None and any(getattr(policy.algorithm, "imitates", False) for policy in policies):
                raise ValueError(
                    "algorithm: expected one that learns from rewards; this one imitates: use train_offline"
                )
            replays = {} if data is None else handles_of(data[0], policies, config)
            config = applied(policies, config)
            _check_goals(make_env, policies)
            for policy in policies:
                if (script := config.of(policy.name).exploration.script) is not None:
                    _check_script(policy, script)
            if config.self_play.pool:
                for policy in policies:
                    check_self_play(config, policy)
            check_picklable(config=config, algorithm=[policy.algorithm for policy in policies])  # which a run saves
            if config.mode == "async":
                check_picklable(env_fn=make_env)
            _warn_of_short_run(policies, config, 0 if here is None or config.replay.save else steps_taken(here))
            compile_before_a_run()
        if remote and resume is not None:  # last, since it may take long
            here = fetch_run(remote, absolute(RUNS))
        return cls(
            make_env, policies, config, runs, here, callback, progress, replays, initial, init_strict, remote, plots
        )


def assigned(
    make_env: Callable[[], Any], algorithm: Algorithms, config: Config
) -> tuple[Callable[[], Any], tuple[AssignedPolicy, ...], Config]:
    """The policies; the environment as they observe it, and the settings with what follows from it."""
    if config.replay.stack is None:
        own = getattr(make_env, "stack", 1)  # of an environment class it may be a method
        config = replace(config, replay=replace(config.replay, stack=own if isinstance(own, int) else 1))
    for device in config.actor.devices:
        choose_device(device)
    if config.teams is not None or wants_teams(algorithm):
        make_env, config = _in_teams(make_env, config)
    with closing(vectorize(make_env, 1)) as env:
        if config.self_play.pool:
            config = replace(config, policies=policies_in_self_play(config, env.agents))
        policies = assign(env.spaces, config.policies, algorithm, config.replay.frames, config.self_play)
        if _has_own_copies(env, make_env):
            config = replace(config, actor=replace(config.actor, envs=env.copies))
    joint = [policy.agents for policy in policies if getattr(policy.algorithm, "wants_joint", False)]
    if joint:
        _check_joint(policies, config)
        make_env = JointObservations(make_env, tuple(dict.fromkeys(chain(*joint))))
        make_env().close()  # raises ValueError where the environment is of a kind without them
        with closing(vectorize(make_env, 1)) as env:
            policies = assign(env.spaces, config.policies, algorithm, config.replay.frames, config.self_play)
    config = with_own_epsilons(policies, config)
    return make_env, tuple(replace(policy, source=source_of(policy, config)) for policy in policies), config


def _check_joint(policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Raises ValueError: in a league, a policy would act by the joint observation of another one's critic."""
    for policy in policies if config.self_play.roles else ():
        if not any(getattr(policy.algorithm, name, False) for name in ("wants_joint", "wants_team")):
            raise ValueError(
                "algorithm: expected ones of teams or with a critic of joint observations for all policies of this "
                f"league, got {type(policy.algorithm).__name__} for {policy.name!r}"
            )


def _in_teams(make_env: Callable[[], Any], config: Config) -> tuple[Callable[[], Any], Config]:
    """The environment whose agents are teams, and the settings with their names in place of a function of names."""
    with closing(vectorize(make_env, 1)) as env:
        teams = teams_of(env.agents, config.teams)
    made = Teams(make_env, teams)
    made().close()  # raises ValueError where the environment is of a kind without them
    team_of = {member: team for team, members in teams.items() for member in members}
    for agent in config.policies if isinstance(config.policies, Mapping) else ():
        if agent in team_of and agent not in teams:
            raise ValueError(f"policies: expected the team {team_of[agent]!r} in place of its member, got {agent!r}")
    return made, config if config.teams is None else replace(config, teams=team_of)


def _assigned_to_data(
    spaces: Spaces, algorithm: Algorithms, config: Config
) -> tuple[Callable[[], Any], tuple[AssignedPolicy, ...]]:
    """The only policy of recorded data, and in place of an environment a function that raises: there is none."""
    for name in ("interval", "seconds"):
        if value := getattr(config.evaluation, name):
            raise ValueError(f"evaluation.{name}: expected 0 without an environment, got {value}")
    policies = assign({"agent_0": replace(spaces, stack=1)}, config.policies, algorithm, config.replay.frames)
    return no_environment, tuple(replace(policy, source=source_of(policy, config)) for policy in policies)


def no_environment() -> None:
    """Stands for the environment of a run that has none. Raises ValueError."""
    raise ValueError("env_fn: expected an environment, got a run on recorded data without one; pass env_fn=")


def _check_goals(make_env: Callable[[], Any], policies: tuple[AssignedPolicy, ...]) -> None:
    """Raises ValueError: a policy's replay relabels goals, but the environment has none or cannot judge them."""
    relabelled = [(policy, policy.source.hindsight) for policy in policies if isinstance(policy.source, ReplaySource)]
    for policy, hindsight in relabelled:
        if hindsight is not None:
            with closing(make_env()) as env:
                with_functions_of(env, hindsight, policy.algorithm.transition(policy.spaces))


def _has_own_copies(env: VectorEnvironment, make_env: Callable[[], Any]) -> bool:
    """Whether the environment, of which one copy was asked for, is a vector with a number of copies of its own."""
    if env.copies > 1 or isinstance(env, Copies):
        return env.copies > 1
    with closing(vectorize(make_env, 2)) as two:
        return two.copies == 1


def _check_script(policy: AssignedPolicy, script: str) -> None:
    """Raises ValueError, TypeError: it is no script, or rows of the policy hold what only its algorithm tells."""
    ScriptedPlayer(SCRIPT, resolve(SCRIPT, script), policy.spaces, 1)
    if extras := policy.algorithm.transition(policy.spaces).extras.keys() - {*OF_OUTCOMES}:
        raise ValueError(
            f"{SCRIPT}: expected None, since rows of {type(policy.algorithm).__name__}, the algorithm of "
            f"{policy.name!r}, hold its {', '.join(sorted(extras))}, got {script!r}"
        )


def share_of(policy: AssignedPolicy, policies: tuple[AssignedPolicy, ...]) -> float:
    """A policy's share of a run's steps, if every agent acts equally often."""
    return len(policy.agents) / sum(len(policy.agents) for policy in policies)


def warn_of_few_samples(run_input: RunInput, steps: int, updates: Mapping[str, int]) -> None:
    """Warns if a free run of `steps` steps drew each transition of a policy less than once on average."""
    for policy in run_input.policies:
        inserted, learner = share_of(policy, run_input.policies) * steps, run_input.config.learner_of(policy.name)
        free = run_input.config.of(policy.name).updates_per_step is None
        queued = isinstance(policy.source, QueueSource)  # which reads each transition once
        if queued or run_input.replays or not free or inserted <= learner.warmup:
            continue
        ratio = updates[policy.name] * learner.batch_size / inserted
        if ratio < 1.0:
            log.warning(
                "updates_per_step: %s trained on %.2g samples for each of its steps, since the run was free; "
                "a number, such as %g, holds the ratio",
                printable(policy.name), ratio, Config.updates_per_step,
            )  # fmt: skip


def _warn_of_short_run(policies: tuple[AssignedPolicy, ...], config: Config, taken: int) -> None:
    """Warns if a run ends before the warm-up of a replay, or before a queue's first batch.

    A run that is resumed on this machine has `taken` steps already, whose rows are lost.
    """
    left = config.total_steps - taken
    these = "steps that are left" if taken else "steps"
    for policy in policies:
        steps, source = share_of(policy, policies) * left, policy.source
        label, needed = "learner.warmup", config.learner_of(policy.name).warmup + 1
        if isinstance(source, QueueSource):
            label, needed = "the algorithm's batch_size", source.batch_size * (source.length or 1)
        if 0 < steps < needed:
            log.warning(
                "%s: %s takes %s of the %d %s, and learns only with %d: it will learn nothing in them",
                label, printable(policy.name), f"{steps:.1f}".removesuffix(".0"), left, these, needed,
            )  # fmt: skip
