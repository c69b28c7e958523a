"""The tasks of `bench.results`: what is trained, on what, with which settings beside the defaults."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

import marlcore as mc

from .peers import plain_dqn
from .training_work import Setting

CELLS = 10
PENDULUM = {"total_steps": 20_000, "updates_per_step": 1.0}


@dataclass(frozen=True)
class Task:
    """A learning claim. Names are those of the command line."""

    env: str | Callable[[], Any]
    algorithm: Any
    settings: Mapping[str, Any] = field(default_factory=dict)  # of mc.Config, where they are not the default
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


def _shared(count: int) -> dict[str, Any]:
    return {"policies": {f"agent_{i}": "all" for i in range(count)}}


# Three agents' moves mix in each reward: batches of 64 episodes, and a short reach of the advantages, average them out.
NEAR: dict[str, Any] = {"learner": mc.LearnerConfig(gamma=0.95), "actor": mc.ActorConfig(envs=32)}
SHORT: dict[str, Any] = {
    "learning_rate": 7e-4, "batch_size": 4800, "minibatch_size": 600, "gae_lambda": 0.9, "entropy_coefficient": 0.01,
}  # fmt: skip
SPREAD = "pettingzoo-parallel:mpe2.simple_spread_v3"
# Memory: the same settings with it and without.
WINDOWS = {"total_steps": 40_000, "learner": mc.LearnerConfig(batch_size=16)}
ON_POLICY = {"total_steps": 120_000, "actor": mc.ActorConfig(envs=64)}
OF_PPO = {"batch_size": 2688, "minibatch_size": 336, "learning_rate": 1e-3, "entropy_coefficient": 0.02}


TASKS = {
    "CartPole-v1": Task("gymnasium:CartPole-v1", "dqn"),
    "CartPole-v1, plain loop": Task("gymnasium:CartPole-v1", "dqn", peer=_plain_loop),
    "LunarLander-v3": Task("gymnasium:LunarLander-v3", "dqn"),
    "simple_spread_v3": Task("pettingzoo:mpe2.simple_spread_v3", "dqn"),
    "simple_spread_v3, dqn, one policy": Task(SPREAD, "dqn", settings=_shared(3)),
    "simple_spread_v3, ippo, one policy": Task(SPREAD, mc.PPO(**SHORT), settings=_shared(3) | NEAR),
    "simple_spread_v3, mappo, one policy": Task(SPREAD, mc.MAPPO(**SHORT), settings=_shared(3) | NEAR),
    "CartPole-v1, ppo": Task("gymnasium:CartPole-v1", "ppo"),
    "treasure_hunt": Task("treasure_hunt", "iqn"),
    "Pendulum-v1, td3": Task("gymnasium:Pendulum-v1", "td3", settings=PENDULUM),
    "Pendulum-v1, sac": Task("gymnasium:Pendulum-v1", "sac", settings=PENDULUM),
    "corridor of 10 cells": Task(Corridor, "dqn", settings={"total_steps": 80_000}),
    "recall, r2d2": Task("recall", "r2d2", settings=WINDOWS),
    "recall, dqn": Task("recall", "dqn", settings=WINDOWS),
    "recall, recurrent ppo": Task("recall", mc.RecurrentPPO(unroll=32, **OF_PPO), settings=ON_POLICY),
    "recall, ppo": Task("recall", mc.PPO(**OF_PPO), settings=ON_POLICY),
}
"""By name. A task of `marlcore train` alone has no other settings than its command line gives."""
