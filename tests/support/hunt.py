"""A small treasure hunt, and how well it is played."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from marlcore.envs import TreasureHunt

HUNT = partial(TreasureHunt, agents=2, size=6, horizon=25, gems=3, food=1, bones=3)


class Calm(TreasureHunt):
    """Leaves the machine's cores to the processes that start."""

    def step(self, action: Any) -> None:
        time.sleep(0.003)
        super().step(action)


def mean_returns(choose: Callable[[str, Any], int], episodes: int = 200) -> dict[str, float]:
    """Each agent's mean return; `choose(agent, obs)` gives its actions."""
    env = HUNT()
    env.reset(0)
    totals = dict.fromkeys(env.agents, 0.0)
    for _ in range(episodes):
        while (agent := env.agent) is not None:
            obs, reward, terminated, truncated, _ = env.last()
            totals[agent] += reward
            env.step(None if terminated or truncated else choose(agent, obs))
        env.reset()
    return {agent: total / episodes for agent, total in totals.items()}


def bar() -> float:
    """A return that needs learning: three times that of random play, and at least ten more."""
    rng = np.random.default_rng(0)
    random = float(np.mean(list(mean_returns(lambda agent, obs: int(rng.integers(4))).values())))
    return max(3 * random, random + 10)
