"""Teams: agents that observe, act and earn as one, so that a row holds one step of all members."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from ..checks import brief
from ..interfaces import MEMBER_REWARDS
from ..observations import ALONE
from ..spaces import ALIVE, MASK, MEMBERS
from ..spec import Field, as_field
from .agent_view import Wrapper, as_reward, has_mask, result_of, unmasked, without_mask
from .per_agent import by_agents
from .pettingzoo import is_parallel


@dataclass(frozen=True)
class Teams:
    """A picklable function that makes an environment in which each team, a tuple of members' names, is one agent."""

    env_fn: Callable[[], Any]
    teams: Mapping[str, tuple[str, ...]]

    def __call__(self) -> "TeamEnvironment":
        return TeamEnvironment(self.env_fn(), self.teams)


class Team:
    """Joins some agents of an environment into one.

    Members with equal spaces form a group, whose observations are one array [members, ...]: the part "members" of the
    team's observation, or "members_0", "members_1" and so on for several groups. The part "alive" tells which members
    act. The action is a MultiDiscrete with a component for each member, or a Box [members, components], flat if members
    have unequal numbers of components. Members are in the order of the groups, in "alive" as in the action. An absent
    member observes zeros; the absent member's mask, if the team has masks, allows only that member's first action.

    Raises: ValueError: the members' actions are neither all Discrete nor all a Box of floats.
    """

    def __init__(self, name: str, members: tuple[str, ...], env: Any) -> None:
        self._spaces = {member: env.observation_space(member) for member in members}
        self._acted = acted = {member: env.action_space(member) for member in members}
        self._seen = {member: without_mask(space) for member, space in self._spaces.items()}
        plain = {  # as arrays: a Box as it is, others flattened
            member: space if isinstance(space, gym.Box) else gym.Box(-np.inf, np.inf, (gym.flatdim(space),))
            for member, space in self._seen.items()
        }
        apart = {member: (space, acted[member]) for member, space in self._seen.items()}
        groups: list[list[str]] = []
        for member in members:
            alike = next((group for group in groups if apart[group[0]] == apart[member]), None)
            groups.append([member]) if alike is None else alike.append(member)
        self.members = tuple(member for group in groups for member in group)
        names = [MEMBERS] if len(groups) == 1 else [f"{MEMBERS}_{number}" for number in range(len(groups))]
        fields = [Field(space.shape, np.dtype(space.dtype).name) for space in (plain[group[0]] for group in groups)]
        self._groups = dict(zip(names, zip(groups, fields, strict=True), strict=True))
        self.action_space, sizes = _joined_actions(name, [acted[member] for member in self.members])
        self._ends = np.cumsum(sizes)[:-1]
        parts = {part: batch_space(plain[group[0]], len(group)) for part, (group, _) in self._groups.items()}
        self.observation_space = gym.Dict({**parts, ALIVE: gym.MultiBinary(len(members))})
        self._choices = dict(zip(self.members, sizes, strict=True))
        self._masked = any(has_mask(space) for space in self._spaces.values())
        if self._masked:
            self.observation_space = gym.Dict({ALONE: self.observation_space, MASK: gym.MultiBinary(sum(sizes))})

    def observation(self, observations: Mapping[str, Any], alive: Collection[str]) -> dict[str, Any]:
        """Returns the team's observation. Raises ValueError or TypeError if a member's observation does not fit."""
        parts: dict[str, Any] = {}
        for part, (group, field) in self._groups.items():
            parts[part] = rows = field.zeros(len(group))
            for row, member in enumerate(group):
                if member in observations:
                    rows[row] = as_field(f"obs of {member}", field, self._array(member, observations[member]))
                elif member in alive:
                    raise ValueError(f"obs of {member}: expected one, got those of {brief(list(observations))}")
        parts[ALIVE] = np.array([member in alive for member in self.members], np.int8)
        if not self._masked:
            return parts
        masks = [self._mask(member, observations if member in alive else {}) for member in self.members]
        return {ALONE: parts, MASK: np.concatenate(masks)}

    def actions(self, action: NDArray[Any]) -> dict[str, Any]:
        if isinstance(self.action_space, gym.MultiDiscrete):
            return dict(zip(self.members, action.tolist(), strict=True))
        parts = zip(self.members, np.split(action.reshape(-1), self._ends), strict=True)
        return {
            member: part.reshape(self._acted[member].shape).astype(self._acted[member].dtype) for member, part in parts
        }

    def _array(self, member: str, observation: Any) -> Any:
        """Returns a member's observation without its mask, flattened unless its space is a Box."""
        alone = unmasked(observation) if has_mask(self._spaces[member]) else observation
        space = self._seen[member]
        return alone if isinstance(space, gym.Box) else gym.flatten(space, alone).astype(np.float32)

    def _mask(self, member: str, observations: Mapping[str, Any]) -> NDArray[np.int8]:
        mask = np.zeros(self._choices[member], np.int8)
        if member not in observations:
            mask[0] = 1
            return mask
        if not has_mask(self._spaces[member]):
            return mask + 1
        return as_field(f"{MASK} of {member}", Field(mask.shape, "int8"), observations[member][MASK])


class TeamEnvironment(Wrapper):
    """A PettingZoo Parallel environment in which each of `teams` is one agent; see `Team`.

    A team earns the sum of its members' rewards, which its info lists as "member_rewards". The team's episode ends
    when the last member's does: truncated if a member that acted until then was truncated, otherwise terminated. An
    AEC environment whose metadata hold "is_parallelizable" is converted to a Parallel one.

    Raises: ValueError: the environment is of another kind, or its members' actions cannot be joined.
    """

    def __init__(self, env: Any, teams: Mapping[str, tuple[str, ...]]) -> None:
        self._env = env = _parallel(env)
        self._teams = {name: Team(name, members, env) for name, members in teams.items()}
        self._team_of = {member: name for name, members in teams.items() for member in members}
        self.possible_agents = list(dict.fromkeys(self._team_of.get(agent, agent) for agent in env.possible_agents))
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space:
        return self._teams[agent].observation_space if agent in self._teams else self._env.observation_space(agent)

    def action_space(self, agent: str) -> gym.Space:
        return self._teams[agent].action_space if agent in self._teams else self._env.action_space(agent)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = result_of("reset", self._env.reset(seed=seed, options=options))
        self.agents = self._there(self._env.agents)
        observed, of_agents = self._of_others(observations), self._of_others(infos)
        for name in self._teams.keys() & self.agents:
            observed[name] = self._teams[name].observation(observations, self._env.agents)
            of_agents[name] = self._info(name, infos)
        return observed, of_agents

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        acted: dict[str, Any] = {}
        for agent, action in actions.items():
            acted |= self._teams[agent].actions(action) if agent in self._teams else {agent: action}
        acted = {agent: acted[agent] for agent in self._env.agents if agent in acted}
        results = result_of("step", self._env.step(acted))
        observations, rewards, terminated, truncated, infos = results
        ended = {agent for agent in acted if terminated.get(agent) or truncated.get(agent)}
        live = [agent for agent in self._env.agents if agent not in ended]
        self.agents = self._there(live)
        of_agents = tuple(map(self._of_others, results))
        for name, team in self._teams.items():
            ends = name in actions and name not in self.agents
            cut = [member for member in team.members if ends and member in ended and not terminated.get(member)]
            earned = [as_reward(rewards.get(member, 0.0)) for member in team.members]
            if name not in self.agents and ended.isdisjoint(team.members):
                of_agents[1][name] = sum(earned)  # the team is absent, or left before an end
                continue
            values = (
                team.observation(observations, cut or live),
                sum(earned),
                ends and not cut,
                bool(cut),
                {**self._info(name, infos), MEMBER_REWARDS: earned},
            )
            for result, value in zip(of_agents, values, strict=True):
                result[name] = value
        return of_agents

    def _there(self, live: Collection[str]) -> list[str]:
        """Returns the live agents outside teams, and the teams with a live member."""
        there = {self._team_of.get(agent, agent) for agent in live}
        return [agent for agent in self.possible_agents if agent in there]

    def _of_others(self, by_agent: Mapping[str, Any]) -> dict[str, Any]:
        return {agent: value for agent, value in by_agent.items() if agent not in self._team_of}

    def _info(self, team: str, infos: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the info of the first member that has one. Raises ValueError if a member's info holds a mask."""
        given = [infos[member] for member in self._teams[team].members if member in infos]
        if any(MASK in info for info in given):
            raise ValueError(f"{MASK}: expected those of a team's members in their observations, got one in an info")
        return dict(given[0]) if given else {}


def _parallel(env: Any) -> Any:
    env = by_agents(env)
    if is_parallel(env):
        return env
    if hasattr(env, "last") and getattr(env, "metadata", {}).get("is_parallelizable"):
        from pettingzoo.utils.conversions import aec_to_parallel

        return aec_to_parallel(env)
    raise ValueError(
        f"teams: expected an environment of PettingZoo whose agents act at once, such as "
        f"pettingzoo-parallel:mpe2.simple_spread_v3, got {brief(env)}"
    )


def _joined_actions(team: str, spaces: list[gym.Space]) -> tuple[gym.Space, list[int]]:
    """Returns one space for all members' actions, and each member's number of choices or components."""
    if all(isinstance(space, gym.Discrete) for space in spaces):
        sizes = [int(space.n) for space in spaces]
        return gym.MultiDiscrete(sizes, start=[int(space.start) for space in spaces]), sizes
    if all(isinstance(space, gym.Box) and np.dtype(space.dtype).kind == "f" for space in spaces):
        low, high = (np.concatenate([getattr(space, bound).ravel() for space in spaces]) for bound in ("low", "high"))
        sizes = [int(np.prod(space.shape)) for space in spaces]
        if len(set(sizes)) == 1:
            low, high = (bound.reshape(len(sizes), -1) for bound in (low, high))
        return gym.Box(low, high, dtype=low.dtype), sizes
    raise ValueError(f"team {team}: expected Discrete actions of all members, or a Box of all, got {brief(spaces)}")
