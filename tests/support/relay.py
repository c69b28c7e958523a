"""A PettingZoo environment whose agents come and go."""

from typing import Any

import gymnasium
import numpy as np
import pettingzoo
from crowd import Rounds


class Relay(Rounds, pettingzoo.ParallelEnv):
    """Agents that come and go: "a" dies in round 3, "c" joins in round 2, all are truncated in round 5.

    Everybody sees [round, last action of a, b, c] in ONE buffer that each step overwrites; an action is its
    own reward.
    """

    see, do = gymnasium.spaces.Box(-100, 100, (4,), np.float32), gymnasium.spaces.Discrete(3, start=-1)
    possible_agents = ["a", "b", "c"]  # noqa: RUF012

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents = ["a", "b"]
        self.seen = np.zeros(4, np.float32)
        return dict.fromkeys(self.agents, self.seen), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[Any, Any, Any, Any, Any]:
        assert sorted(actions) == sorted(self.agents), "every live agent acts, and no other"
        self.seen[0] += 1
        for agent, action in actions.items():
            assert self.do.contains(action)
            self.seen[1 + self.possible_agents.index(agent)] = action
        acted, now = list(actions), int(self.seen[0])
        terminated = {agent: agent == "a" and now == 3 for agent in acted}
        truncated = dict.fromkeys(acted, now == 5)
        self.agents = [agent for agent in acted if not (terminated[agent] or truncated[agent])]
        if now == 2:
            self.agents.append("c")
            acted.append("c")
            terminated["c"] = truncated["c"] = False
        rewards = {agent: float(actions.get(agent, 0)) for agent in acted}
        return dict.fromkeys(acted, self.seen), rewards, terminated, truncated, {agent: {} for agent in acted}
