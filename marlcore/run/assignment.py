"""The policies of an environment's agents, of teams of them and with joint observations where algorithms want these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import chain
from typing import Any, TypeAlias

from ..config import AssignedPolicy, Config, assign, source_of, teams_of, wants_teams, with_own_epsilons
from ..envs import vectorize
from ..envs.copies import Copies
from ..envs.joint import JointObservations
from ..envs.team import Teams
from ..interfaces import Algorithm, VectorEnvironment
from ..loops import choose_device
from ..self_play import policies_in_self_play

Algorithms: TypeAlias = Algorithm | str | Mapping[str, Algorithm | str]


def assigned(
    make_env: Callable[[], Any], algorithm: Algorithms, config: Config
) -> tuple[Callable[[], Any], tuple[AssignedPolicy, ...], Config]:
    """The policies; the environment as they observe it, and the settings with what follows from it."""
    if config.replay.stack is None:
        stack = getattr(make_env, "stack", 1)  # of an environment class it may be a method
        config = replace(config, replay=replace(config.replay, stack=stack if isinstance(stack, int) else 1))
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
    return make_env, with_sources(policies, config), config


def with_sources(policies: tuple[AssignedPolicy, ...], config: Config) -> tuple[AssignedPolicy, ...]:
    return tuple(replace(policy, source=source_of(policy, config)) for policy in policies)


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


def _has_own_copies(env: VectorEnvironment, make_env: Callable[[], Any]) -> bool:
    """Whether the environment, of which one copy was asked for, is a vector with a number of copies of its own."""
    if env.copies > 1 or isinstance(env, Copies):
        return env.copies > 1
    with closing(vectorize(make_env, 2)) as two:
        return two.copies == 1


def _check_joint(policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Raises ValueError: in a league, a policy would act by the joint observation of another one's critic."""
    for policy in policies if config.self_play.roles else ():
        if not any(getattr(policy.algorithm, name, False) for name in ("wants_joint", "wants_team")):
            raise ValueError(
                "algorithm: expected ones of teams or with a critic of joint observations for all policies of this "
                f"league, got {type(policy.algorithm).__name__} for {policy.name!r}"
            )
