"""The tasks of `python -m bench results`: what is trained, on what, with which settings, some from presets."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import gymnasium
import numpy as np

import marlcore as mc

from ..peers import plain_dqn
from ..peers.setting import Setting

CELLS = 10  # of the corridor
FIELD, PIXELS = 12, 3  # cells of Catch, and pixels of a cell


@dataclass(frozen=True)
class Task:
    """A learning claim. Names are those of the command line."""

    env: str | Callable[[], Any]
    algorithm: Any
    config: mc.Config = field(default_factory=mc.Config)
    # Instead of marlcore: trains with a seed for a number of steps, and tells each episode's last step and return
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


class Catch(gymnasium.Env[Any, Any]):
    """A ball falls through 12 x 12 cells and is deflected at random; the paddle below earns 1 for a catch, else -1."""

    observation_space = gymnasium.spaces.Box(0, 255, (FIELD * PIXELS, FIELD * PIXELS), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball, self._paddle = (int(self.np_random.integers(FIELD)) for _ in range(2))
        self._row = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), FIELD - 1)
        if self.np_random.random() < 0.3:
            self._ball = min(max(self._ball + int(self.np_random.integers(2)) * 2 - 1, 0), FIELD - 1)
        self._row += 1
        over = self._row == FIELD - 1
        reward = (1.0 if abs(self._ball - self._paddle) <= 1 else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> Any:
        field = np.zeros((FIELD, FIELD), np.uint8)
        field[self._row, self._ball] = 255
        field[-1, max(self._paddle - 1, 0) : self._paddle + 2] = 128
        return field.repeat(PIXELS, 0).repeat(PIXELS, 1)


def _plain_loop(seed: int, steps: int, tell: Callable[[int, float], object]) -> None:
    setting = Setting(updates_per_step=0.1, warmup=500, learning_rate=2.5e-4, epsilon=0.02, target_updates=50)
    plain_dqn.train(setting, steps, seed, tell)


SPREAD = mc.preset("simple-spread-ppo")
R2D2, RECURRENT_PPO = mc.preset("recall-r2d2"), mc.preset("recall-recurrentppo")
WIDE = mc.DQN(hidden=(128, 128))  # instead of 128 x 64 units
OF_BOTH = ("batch_size", "minibatch_size", "learning_rate", "entropy_coefficient")
PPO = mc.PPO(**{name: getattr(RECURRENT_PPO.algorithm, name) for name in OF_BOTH})

CATCH = mc.Config(
    total_steps=20_000,
    actor=mc.ActorConfig(envs=8),
    learner=mc.LearnerConfig(n_step=1),
    exploration=mc.ExplorationConfig(epsilon="linear(1, 0.05, 5_000)"),
)
CATCH_WITH_ALL = replace(CATCH, learner=mc.LearnerConfig(n_step=3), replay=mc.ReplayConfig(prioritized=True))


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
    "Catch, plain DQN": Task(Catch, mc.DQN(double=False, dueling=False, reward_scale=1.0), CATCH),
    "Catch, DQN with all parts": Task(Catch, mc.DQN(reward_scale=1.0, actor_priorities=True), CATCH_WITH_ALL),
    "recall, r2d2": Task(*R2D2),
    "recall, dqn": Task("recall", "dqn", R2D2.config),
    "recall, recurrent ppo": Task(*RECURRENT_PPO),
    "recall, ppo": Task("recall", PPO, RECURRENT_PPO.config),
}
"""By name. A task of `marlcore train` alone has no other settings than its command line gives."""
