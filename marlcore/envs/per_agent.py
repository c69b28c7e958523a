"""Gymnasium environments whose spaces are tuples with a part for each of several agents, such as lbforaging's."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np

from ..checks import brief
from .agent_view import Wrapper, result_of


def has_agents(env: Any) -> bool:
    """Tells whether the environment's action space is a Tuple, and so has a part for each of several agents."""
    return isinstance(getattr(env, "action_space", None), gymnasium.spaces.Tuple) and not hasattr(env, "num_envs")


def by_agents(env: Any) -> Any:
    """Returns `env`, wrapped in a PerAgent if it has several agents."""
    return PerAgent(env) if has_agents(env) else env


class PerAgent(Wrapper):
    """Turns a Gymnasium environment of several agents into a PettingZoo Parallel one of "agent_0", "agent_1" and so on.

    A single reward, end or info counts for every agent; an episode ends for all agents at once.

    Raises: ValueError: the observation space is no Tuple with a part for each agent.
    """

    def __init__(self, env: Any) -> None:
        seen, acted = env.observation_space, env.action_space
        if not isinstance(seen, gymnasium.spaces.Tuple) or len(seen) != len(acted):
            raise ValueError(
                f"observation space: expected a Tuple of {len(acted)} parts, like the action space, got {brief(seen)}"
            )
        self.possible_agents = [f"agent_{i}" for i in range(len(acted))]
        self.agents: list[str] = []
        self.observation_space = self._by_agent(seen).__getitem__
        self.action_space = self._by_agent(acted).__getitem__
        self._env = env

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, info = result_of("reset", self._env.reset(seed=seed, options=options))
        self.agents = [*self.possible_agents]
        return self._by_agent(observations), self._by_agent(self._infos(info))

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        results = result_of("step", self._env.step(tuple(actions[agent] for agent in self.possible_agents)))
        observations, reward, terminated, truncated, info = results
        count, over = len(self.possible_agents), bool(np.all(np.logical_or(terminated, truncated)))
        dead = np.broadcast_to(np.logical_and(terminated, over), count)
        ends = dead.tolist(), (over & ~dead).tolist()
        if over:
            self.agents = []
        values = observations, np.broadcast_to(reward, count), *ends, self._infos(info)
        return tuple(map(self._by_agent, values))

    def _by_agent(self, values: Iterable[Any]) -> dict[str, Any]:
        return dict(zip(self.possible_agents, values, strict=True))

    def _infos(self, info: Any) -> Sequence[Any]:
        return info if isinstance(info, (list, tuple)) else [info] * len(self.possible_agents)
