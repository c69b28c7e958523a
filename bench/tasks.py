"""The tasks of `bench.results`: what is trained, on what, with which settings. Those of some are presets."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

import marlcore as mc

from .peers import plain_dqn
from .training_work import Setting

CELLS = 10


@dataclass(frozen=True)
class Task:
    """A learning claim. Names are those of the command line."""

    env: str | Callable[[], Any]
    algorithm: Any
    config: mc.Config = field(default_factory=mc.Config)
    # Instead of marlcore: trains with a seed for so many steps, and tells each episode's last step and return
    peer: Callable[[int, int, Callable[[int, float], object]], object] | None = None


class Corridor(gymnasium.Env[Any, Any]):
    """Ten cells, one step left or right at a time; the last one pays 1 and ends the episode, as 50 steps do."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (CELLS,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = max(0, self._at + (1 if action == 1 else -1))
        self._steps += 1
        there = self._at == CELLS - 1
        return self._observe(), float(there), there, not there and self._steps == 50, {}

    def _observe(self) -> Any:
        return np.eye(CELLS, dtype=np.float32)[self._at]


def _plain_loop(seed: int, steps: int, tell: Callable[[int, float], object]) -> None:
    setting = Setting(updates_per_step=0.1, warmup=500, learning_rate=2.5e-4, epsilon=0.02, target_updates=50)
    plain_dqn.train(setting, steps, seed, tell)


SPREAD = mc.preset("simple-spread-ppo")
# Memory: the same settings with it and without.
R2D2, RECURRENT_PPO = mc.preset("recall-r2d2"), mc.preset("recall-recurrentppo")
WIDE = mc.DQN(hidden=(128, 128))  # instead of 128 x 64 units
SHARED = ("batch_size", "minibatch_size", "learning_rate", "entropy_coefficient")


TASKS = {
    "CartPole-v1": Task("gymnasium:CartPole-v1", "dqn"),
    "CartPole-v1, plain loop": Task("gymnasium:CartPole-v1", "dqn", peer=_plain_loop),
    "CartPole-v1, 128 x 128 units": Task("gymnasium:CartPole-v1", WIDE),
    "LunarLander-v3": Task("gymnasium:LunarLander-v3", "dqn"),
    "LunarLander-v3, 128 x 128 units": Task("gymnasium:LunarLander-v3", WIDE),
    "simple_spread_v3": Task("pettingzoo:mpe2.simple_spread_v3", "dqn"),
    "simple_spread_v3, dqn, one policy": Task(SPREAD.env, "dqn", mc.Config(policies=SPREAD.config.policies)),
    "simple_spread_v3, ippo, one policy": Task(*SPREAD),
    "simple_spread_v3, mappo, one policy": Task(*mc.preset("simple-spread-mappo")),
    "CartPole-v1, ppo": Task("gymnasium:CartPole-v1", mc.PPO()),
    "treasure_hunt": Task("treasure_hunt", "iqn"),
    "Pendulum-v1, td3": Task(*mc.preset("pendulum-td3")),
    "Pendulum-v1, sac": Task(*mc.preset("pendulum-sac")),
    "corridor of 10 cells": Task(Corridor, "dqn", mc.Config(total_steps=80_000)),
    "recall, r2d2": Task(*R2D2),
    "recall, dqn": Task("recall", "dqn", R2D2.config),
    "recall, recurrent ppo": Task(*RECURRENT_PPO),
    "recall, ppo": Task(
        "recall", mc.PPO(**{name: getattr(RECURRENT_PPO.algorithm, name) for name in SHARED}), RECURRENT_PPO.config
    ),
}
"""By name. A task of `marlcore train` alone has no other settings than its command line gives."""
