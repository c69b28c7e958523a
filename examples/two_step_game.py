"""Two agents who must choose well together: `python examples/two_step_game.py`, in which QMIX earns 8 and VDN 7.

The game of Rashid et al. 2018, section 5 (arXiv:1803.11485): the first agent's first action chooses the second step's
game. One game always pays 7; the other pays 8 if both agents dare, and little otherwise. A sum of two agents' values
cannot tell that daring pays only if both do, so VDN plays safe; QMIX mixes the values as the state demands.
"""

import argparse
from typing import Any

import numpy as np
from gymnasium import spaces

import marlcore as mc

SAFE, DARING = np.full((2, 2), 7.0), np.array([[0.0, 1.0], [1.0, 8.0]])


class TwoStepGame:
    """A PettingZoo Parallel environment."""

    possible_agents = ("first", "second")
    state_space = spaces.Box(0, 1, (3,), np.float32)

    def __init__(self) -> None:
        self.agents: list[str] = []
        self.room = 0  # 0 at first, then 1, where all is safe, or 2

    def observation_space(self, agent: str) -> spaces.Space:
        return self.state_space

    def action_space(self, agent: str) -> spaces.Space:
        return spaces.Discrete(2)

    def state(self) -> Any:
        return np.eye(3, dtype=np.float32)[self.room]

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.room = list(self.possible_agents), 0
        return dict.fromkeys(self.agents, self.state()), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        ends = self.room > 0
        paid = (SAFE, DARING)[self.room - 1][actions["first"], actions["second"]] if ends else 0.0
        self.room = self.room if ends else 1 + actions["first"]
        acted, self.agents = self.agents, [] if ends else self.agents
        rewards = {"first": float(paid), "second": 0.0}  # a team earns the sum
        never, ended = dict.fromkeys(acted, False), dict.fromkeys(acted, bool(ends))
        return dict.fromkeys(acted, self.state()), rewards, ended, never, {agent: {} for agent in acted}

    def close(self) -> None:
        """Holds nothing."""


def train(algorithm: Any, steps: int, seed: int, run_dir: str | None = None) -> float:
    """The greedy policy's return. All actions are explored alike, as in the paper's full exploration."""
    config = mc.Config(
        total_steps=steps,
        seed=seed,
        mode="serial",
        run_dir=run_dir,
        updates_per_step=0.5,
        learner=mc.LearnerConfig(n_step=1, warmup=500),
        exploration=mc.ExplorationConfig(epsilon=1.0),
    )
    result = mc.train(TwoStepGame, algorithm, config, progress=False)
    return mc.evaluate(result.run_dir, episodes=1).mean["team"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=8_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for algorithm in (mc.VDN(), mc.QMIX()):
        print(f"{type(algorithm).__name__} earns {train(algorithm, options.steps, options.seed):.0f}")


if __name__ == "__main__":
    main()
