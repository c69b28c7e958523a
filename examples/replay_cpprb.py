"""cpprb's interface in one process: `train` with a prioritized buffer that holds each observation once.

    python examples/replay_cpprb.py [STEPS]

A DQN learns CartPole without further processes. A program that uses cpprb changes the import of its buffer.
"""

from __future__ import annotations

import copy
import sys
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from marlcore.compat.cpprb import PrioritizedReplayBuffer, train

ENV_DICT = {"obs": {"shape": 4}, "act": {"dtype": "int64"}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
GAMMA = 0.98


class Model(nn.Sequential):
    """The values of both actions; [B, 4] to [B, 2]."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    @torch.no_grad()
    def get_action(self, obs: Any, epsilon: float) -> int:
        return np.random.randint(2) if np.random.random() < epsilon else int(self(torch.from_numpy(obs)).argmax())

    def td_error(self, sample: dict[str, Any], target: nn.Module) -> torch.Tensor:
        """The errors [B] of double Q-learning, for rows of the fields of ENV_DICT."""
        obs, action, reward, next_obs, done = (torch.from_numpy(sample[name]) for name in ENV_DICT)
        with torch.no_grad():
            best = self(next_obs).argmax(1, keepdim=True)
            goal = reward + GAMMA * (1 - done) * target(next_obs).gather(1, best)
        return (goal - self(obs).gather(1, action)).squeeze(1)


def evaluate(model: Model, episodes: int = 20) -> float:
    """The mean return of greedy episodes."""
    env, steps = gymnasium.make("CartPole-v1"), 0  # each of which is rewarded with 1
    for seed in range(episodes):
        (obs, _), terminated, truncated = env.reset(seed=seed), False, False
        while not (terminated or truncated):
            obs, _, terminated, truncated, _ = env.step(model.get_action(obs, 0.0))
            steps += 1
    return steps / episodes


def main(steps: int = 10_000) -> float:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    np.random.seed(0)
    model = Model()
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)

    def get_action(obs: Any, step: int, episode: int, warming_up: bool) -> int:
        return model.get_action(obs, 1.0 if warming_up else max(0.05, 1 - 4 * step / steps))

    def update_policy(sample: dict[str, Any], step: int, episode: int) -> Any:
        error = model.td_error(sample, target)
        losses = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        optimizer.zero_grad()
        (torch.from_numpy(sample["weights"]) * losses).mean().backward()
        optimizer.step()
        if step % 200 == 0:
            target.load_state_dict(model.state_dict())
        return error.detach().abs().numpy()

    fields = {name: about for name, about in ENV_DICT.items() if name != "next_obs"}
    with closing(PrioritizedReplayBuffer(50_000, fields, next_of="obs")) as buffer:
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=0)
        train(buffer, env, get_action, update_policy, max_steps=steps, n_warmups=500)
        mean = evaluate(model)
        print(f"{steps} steps, {buffer.get_stored_size()} transitions held, mean return {mean:.1f}")
    return mean


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
