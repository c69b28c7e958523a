"""Teams: agents that observe, act and earn as one, so a row holds one step of all members."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief
from ..interfaces import MEMBER_REWARDS
from ..observations import ALONE
from ..spaces import ALIVE, MASK, Spaces
from ..spec import Field, as_field
from .agent_view import Wrapper, as_reward, has_mask, result_of, unmasked, without_mask
from .at_once import is_vector
from .members import Team
from .per_agent import by_agents
from .pettingzoo import is_parallel
from .team_vector import TeamVector


@dataclass(frozen=True)
class Teams:
    """A picklable function that makes an environment in which each team, a tuple of members' names, is one agent."""

    env_fn: Callable[[], Any]
    teams: Mapping[str, tuple[str, ...]]

    def __call__(self) -> "TeamEnvironment | TeamVector":
        return self.around(self.env_fn())

    def around(self, env: Any) -> "TeamEnvironment | TeamVector":
        """Returns the teams of an environment of one copy, or of a VectorEnvironment."""
        return TeamVector(env, self.teams) if is_vector(env) else TeamEnvironment(env, self.teams)


class TeamEnvironment(Wrapper):
    """A PettingZoo Parallel environment in which each of `teams` is one agent; see `Team`.

    A team earns the sum of its members' rewards, which its info lists as "member_rewards". The team's episode ends in
    the step that ends the last of its members' episodes: truncated if that step truncates a member, otherwise
    terminated. An AEC environment whose metadata hold "is_parallelizable" is converted to a Parallel one.

    Raises: ValueError: the environment is of another kind, or its members' actions cannot be joined.
    """

    def __init__(self, env: Any, teams: Mapping[str, tuple[str, ...]]) -> None:
        self._env = env = _parallel(env)
        self._teams = {
            name: Team(name, {member: _spaces_of(env, member) for member in members}) for name, members in teams.items()
        }
        self._team_of = {member: name for name, members in teams.items() for member in members}
        self.possible_agents = list(dict.fromkeys(self._team_of.get(agent, agent) for agent in env.possible_agents))
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space:
        return self._teams[agent].observation_space if agent in self._teams else self._env.observation_space(agent)

    def action_space(self, agent: str) -> gym.Space:
        return self._teams[agent].action_space if agent in self._teams else self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = result_of("reset", self._env.reset(seed=seed, options=options))
        self._live = list(self._env.agents)
        self.agents = self._there(self._live)
        observed, of_agents = self._of_others(observations), self._of_others(infos)
        for name in self._teams.keys() & self.agents:
            observed[name] = self._observation(self._teams[name], observations, self._env.agents)
            of_agents[name] = self._info(name, infos)
        return observed, of_agents

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        acted: dict[str, Any] = {}
        for agent, action in actions.items():
            acted |= _of_members(self._teams[agent], action) if agent in self._teams else {agent: action}
        acted = {agent: acted[agent] for agent in self._live if agent in acted}
        results = result_of("step", self._env.step(acted))
        observations, rewards, terminated, truncated, infos = results
        over = {agent for agent in (*terminated, *truncated) if terminated.get(agent) or truncated.get(agent)}
        ended = over & acted.keys()  # an environment may report earlier ends again, and observe for all
        self._live = live = [agent for agent in self._env.agents if agent not in over]
        observations = {agent: obs for agent, obs in observations.items() if agent in live or agent in ended}
        self.agents = self._there(live)
        of_agents = tuple(map(self._of_others, results))
        for name, team in self._teams.items():
            ends = name in actions and name not in self.agents
            cut = [member for member in team.members if ends and member in ended and not terminated.get(member)]
            earned = [as_reward(rewards.get(member, 0.0)) for member in team.members]
            if name not in self.agents and ended.isdisjoint(team.members):
                of_agents[1][name] = sum(earned)  # the team is absent, or all members left without an end
                continue
            values = (
                self._observation(team, observations, cut or live),
                sum(earned),
                ends and not cut,
                bool(cut),
                {**self._info(name, infos), MEMBER_REWARDS: earned},
            )
            for result, value in zip(of_agents, values, strict=True):
                result[name] = value
        return of_agents

    def _there(self, live: Collection[str]) -> list[str]:
        """Returns the live agents that are in no team, and the teams with a live member."""
        there = {self._team_of.get(agent, agent) for agent in live}
        return [agent for agent in self.possible_agents if agent in there]

    def _of_others(self, by_agent: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: value for agent, value in by_agent.items() if agent not in self._team_of}

    def _observation(self, team: Team, observations: Mapping[str, Any], alive: Collection[str]) -> dict[str, Any]:
        """Returns the team's observation. Raises ValueError or TypeError if a member's observation does not fit."""
        arrays = team.empty(1)
        for member, field in team.fields.items():
            if member in observations:
                alone = _without_mask(team.members[member], observations[member])
                team.place(arrays, member, 0, as_field(f"obs of {member}", field, alone))
            elif member in alive:
                raise ValueError(f"obs of {member}: expected an observation, got obs of {brief(list(observations))}")
        arrays[ALIVE][0] = [member in alive for member in team.members]
        for member in alive if team.masked else ():
            if member in team.members:
                team.allow(arrays, member, 0, _mask(member, team.members[member], observations[member]))
        parts = {part: rows[0] for part, rows in arrays.items()}
        return {MASK: parts.pop(MASK), ALONE: parts} if team.masked else parts

    def _info(self, team: str, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the info of the first member that has one. Raises ValueError if a member's info holds a mask."""
        given = [infos[member] for member in self._teams[team].members if member in infos]
        if any(MASK in info for info in given):
            raise ValueError(f"{MASK}: expected masks in the observations of a team's members, got a mask in an info")
        return dict(given[0]) if given else {}


def _spaces_of(env: Any, agent: str) -> Spaces:
    space = env.observation_space(agent)
    return Spaces(without_mask(space), env.action_space(agent), masked=has_mask(space))


def _without_mask(spaces: Spaces, observation: Any) -> Any:
    """Returns a member's observation without its mask; flattens it to float32 unless its space is a Box."""
    alone = unmasked(observation) if spaces.masked else observation
    is_box = isinstance(spaces.observation, gym.Box)
    return alone if is_box else gym.flatten(spaces.observation, alone).astype(np.float32)


def _mask(member: str, spaces: Spaces, observation: Any) -> Any:
    """Returns a member's mask; True, which allows all actions, if it has none."""
    if not spaces.masked:
        return True
    return as_field(f"{MASK} of {member}", Field((spaces.choices,), "int8"), observation[MASK])


def _of_members(team: Team, action: NDArray[Any]) -> dict[str, Any]:
    if isinstance(team.action_space, gym.MultiDiscrete):
        return dict(zip(team.members, action.tolist(), strict=True))
    return {member: chosen[0] for member, chosen in team.actions(action[None]).items()}


def _parallel(env: Any) -> Any:
    env = by_agents(env)
    if is_parallel(env):
        return env
    if hasattr(env, "last") and getattr(env, "metadata", {}).get("is_parallelizable"):
        from pettingzoo.utils.conversions import aec_to_parallel

        return aec_to_parallel(env)
    raise ValueError(
        f"teams: expected a PettingZoo environment whose agents act at once, such as "
        f"pettingzoo-parallel:mpe2.simple_spread_v3, got {brief(env)}"
    )
