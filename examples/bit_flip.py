"""Hindsight: flipping bits until they match a goal, which plain DQN never learns with 10 bits, and hindsight does.

    python examples/bit_flip.py

The task of Andrychowicz et al. 2017 (arXiv:1707.01495), section 3.1. An environment with goals names its observation's
parts as below and has a `compute_reward` of many goals at once; `replay.hindsight` finds it there.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary

import marlcore as mc

BITS = 10


class BitFlip(gymnasium.Env):
    """Each action flips a bit; an episode ends at the goal, or after as many steps as there are bits."""

    def __init__(self, bits: int = BITS) -> None:
        one = MultiBinary(bits)
        self.observation_space = Dict({"observation": one, "achieved_goal": one, "desired_goal": one})
        self.action_space = Discrete(bits)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self._bits, self._goal = self.np_random.integers(0, 2, (2, self.action_space.n), np.int8)
        self._steps = 0
        return self._observed(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self._bits[action] ^= 1
        self._steps += 1
        reached = bool(self.compute_terminated(self._bits, self._goal, {}))
        truncated = not reached and self._steps == len(self._bits)
        return self._observed(), float(reached) - 1.0, reached, truncated, {"success": float(reached)}

    def compute_reward(self, achieved: Any, desired: Any, info: Any) -> Any:
        """Rewards [...] of goals [..., bits]: 0 where they are equal, otherwise -1."""
        return self.compute_terminated(achieved, desired, info) - np.float32(1)

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> Any:
        """Whether goals [..., bits] are equal: bool [...]."""
        return (achieved == desired).all(axis=-1)

    def _observed(self) -> dict[str, Any]:
        return {"observation": self._bits.copy(), "achieved_goal": self._bits.copy(), "desired_goal": self._goal.copy()}


def settings(**changes: Any) -> mc.Config:
    """Settings of a run; `changes` are fields of Config."""
    chosen: dict[str, Any] = {
        "total_steps": 6_000,
        "updates_per_step": 0.5,
        "actor": mc.ActorConfig(envs=8),
        "learner": mc.LearnerConfig(batch_size=64, n_step=1, gamma=0.98, device="cpu"),
        "replay": mc.ReplayConfig(hindsight="future", hindsight_k=4),
        "exploration": mc.ExplorationConfig(epsilon="linear(1, 0.05, 3000)"),
        "evaluation": mc.EvaluationConfig(interval=2_000, episodes=100),
    }
    return mc.Config(**chosen | changes)


def solved(result: mc.Result) -> float:
    """The share of 100 greedy episodes that reach the goal: their return is above -BITS."""
    returns = np.array(mc.evaluate(result.run_dir, episodes=100).returns["agent_0"])
    return float((returns > -BITS).mean())


if __name__ == "__main__":
    outcome = mc.train(BitFlip, mc.DQN(learning_rate=1e-3), settings())
    print(f"goals reached in {solved(outcome):.0%} of the episodes; {outcome.run_dir}")
