"""`python -m bench.ablation`: plain DQN beside DQN with everything, on a small image task at equal updates.

The task is Catch: a ball falls through a field of 12 x 12 cells, seen as 36 x 36 grey pixels, and is deflected at
random; a paddle at the bottom moves left, right or stays. Catching the ball pays 1, missing it -1. Both sides make the
same number of updates on the same number of steps, with the same learning rate. "Everything" is double and dueling,
3-step returns, and prioritized replay whose first priorities come from the actors.
"""

from __future__ import annotations

import argparse
import os
import sys
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np

import marlcore as mc

from .training_work import run

CELLS, PIXELS = 12, 3


class Catch(gymnasium.Env[Any, Any]):
    """An episode is one fall of the ball: 11 steps."""

    observation_space = gymnasium.spaces.Box(0, 255, (CELLS * PIXELS, CELLS * PIXELS), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._ball, self._paddle = (int(self.np_random.integers(CELLS)) for _ in range(2))
        self._row = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._paddle = min(max(self._paddle + int(action) - 1, 0), CELLS - 1)
        if self.np_random.random() < 0.3:
            self._ball = min(max(self._ball + int(self.np_random.integers(2)) * 2 - 1, 0), CELLS - 1)
        self._row += 1
        over = self._row == CELLS - 1
        reward = (1.0 if abs(self._ball - self._paddle) <= 1 else -1.0) if over else 0.0
        return self._observe(), reward, over, False, {}

    def _observe(self) -> Any:
        field = np.zeros((CELLS, CELLS), np.uint8)
        field[self._row, self._ball] = 255
        field[-1, max(self._paddle - 1, 0) : self._paddle + 2] = 128
        return field.repeat(PIXELS, 0).repeat(PIXELS, 1)


SIDES: dict[str, dict[str, Any]] = {
    "plain DQN": {"algorithm": mc.DQN(double=False, dueling=False, reward_scale=1.0), "n_step": 1, "replay": {}},
    "double, dueling, 3-step, prioritized": {
        "algorithm": mc.DQN(reward_scale=1.0, actor_priorities=True),
        "n_step": 3,
        "replay": {"prioritized": True},
    },
}


def compare(side: str, seed: int, steps: int) -> tuple[float, float, int]:
    """(mean return of all episodes, of the last tenth, updates)."""
    options = SIDES[side]
    config = mc.Config(
        total_steps=steps,
        seed=seed,
        actor=mc.ActorConfig(envs=8),
        learner=mc.LearnerConfig(n_step=options["n_step"]),
        replay=mc.ReplayConfig(**options["replay"]),
        exploration=mc.ExplorationConfig(epsilon=f"linear(1, 0.05, {steps // 4})"),
    )
    result, metrics = run(Catch, options["algorithm"], config)
    whole = fmean(metric.value for metric in metrics if metric.name == "episode_return")
    return whole, result.returns["agent_0"], result.updates["agent_0"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ablation", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--seeds", type=int, default=3, help="of each side")
    parser.add_argument("--steps", type=int, default=40_000)
    options = parser.parse_args()
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before\n")
    sys.stdout.write(
        "| side | mean return of the whole run, by seed | of the last tenth, by seed | updates |\n|---|---|---|---|\n"
    )
    for side in SIDES:
        runs = [compare(side, seed, options.steps) for seed in range(options.seeds)]
        whole, last = (", ".join(f"{means[i]:.2f}" for means in runs) for i in (0, 1))
        sys.stdout.write(f"| {side} | {whole} | {last} | {', '.join(str(means[2]) for means in runs)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
