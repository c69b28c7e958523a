"""An environment of one's own, with a Dict observation and a mask of allowed actions, trained by a built-in algorithm.

    python examples/dict_and_mask.py [STEPS]

A courier collects a parcel on a grid and brings it to a door; both are worth a half, and each step costs a little. The
mask forbids steps against walls, picking up where no parcel lies, and dropping elsewhere than at the door. marlcore
reads the mask from `info["action_mask"]`.
"""

import sys
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

import marlcore as mc
from marlcore.testing import check_env

SIDE, LIMIT = 5, 60
MOVES = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
PICK, DROP = 4, 5
SIGNS = "^v<>*!"  # of the actions


class Courier(gymnasium.Env):
    def __init__(self) -> None:
        way = Box(1 - SIDE, SIDE - 1, (2,), np.float32)
        self.observation_space = Dict({"to_parcel": way, "to_door": way, "carries": Discrete(2)})
        self.action_space = Discrete(6)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        cells = self.np_random.choice(SIDE**2, 3, replace=False)
        self.courier, self.parcel, self.door = np.stack(np.divmod(cells, SIDE), 1)
        self.carries, self.steps = 0, 0
        return self.seen()

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if action < PICK:
            self.courier = self.courier + MOVES[action]
        self.carries = int(self.carries or action == PICK)
        obs, info = self.seen()
        return obs, (action >= PICK) / 2 - 0.02, action == DROP, self.steps == LIMIT, info

    def seen(self) -> tuple[dict[str, Any], dict[str, Any]]:
        after = self.courier + MOVES
        inside = ((after >= 0) & (after < SIDE)).all(1)
        pick = not self.carries and (self.courier == self.parcel).all()
        drop = self.carries and (self.courier == self.door).all()
        ways = {f"to_{name}": np.float32(getattr(self, name) - self.courier) for name in ("parcel", "door")}
        return {**ways, "carries": self.carries}, {"action_mask": np.array([*inside, pick, drop], np.int8)}


def play(policy: Any, seed: int) -> str:
    """The actions of a greedy episode."""
    env, said = Courier(), ""
    obs, info = env.reset(seed=seed)
    over = False
    while not over:
        action = int(policy.act(obs, mask=info["action_mask"]))
        obs, _, terminated, truncated, info = env.step(action)
        over, said = terminated or truncated, said + SIGNS[action]
    return said


def main(steps: int = 20_000) -> float:
    check_env(Courier)
    config = mc.Config(
        total_steps=steps,
        updates_per_step=0.25,
        actor=mc.ActorConfig(envs=8),
        learner=mc.LearnerConfig(batch_size=64, device="cpu"),
        exploration=mc.ExplorationConfig(epsilon=f"linear(1, 0.05, {steps // 2})"),
    )
    result = mc.train(Courier, mc.DQN(learning_rate=1e-3, reward_scale=1.0), config, progress=False)
    returns = np.array(mc.evaluate(result.run_dir, episodes=100).returns["agent_0"])
    policy = mc.load_policy(result.run_dir, "agent_0")
    print(f"{(returns > 0).mean():.0%} of 100 parcels were delivered, return {returns.mean():.2f}")
    print("up ^, down v, left <, right >, pick up *, drop !:", " ".join(play(policy, seed) for seed in range(3)))
    return float(returns.mean())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
