"""DQN as one plain loop, in the manner of CleanRL's dqn.py.

(Huang et al. 2022, JMLR 23, paper 274.) The loop steps one CartPole, stores the transition without checks, and updates.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from .setting import Setting


class PlainDQN:
    def __init__(self, setting: Setting, network: nn.Module) -> None:
        self.setting, self.updates = setting, 0
        self.network, self.target = network, deepcopy(network)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=setting.learning_rate)

    def update(self, batch: list[NDArray[np.generic]]) -> None:
        """One step on (obs, action, reward, next obs, terminated), each [B, ...]."""
        obs, action, reward, next_obs, terminated = map(torch.from_numpy, batch)
        with torch.no_grad():
            future = self.target(next_obs).max(dim=1).values
            goal = reward + self.setting.gamma * future * (1 - terminated)
        values = self.network(obs).gather(1, action[:, None]).squeeze(1)
        loss = functional.mse_loss(values, goal)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.setting.target_updates == 0:
            self.target.load_state_dict(self.network.state_dict())


def mlp(inputs: int, hidden: tuple[int, int], outputs: int) -> nn.Module:
    """Two hidden layers; inputs of any shape."""
    first, second = hidden
    layers = nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, outputs)
    return nn.Sequential(nn.Flatten(), *layers)


def columns(capacity: int, shape: tuple[int, ...]) -> list[NDArray[Any]]:
    """Empty columns of obs, action, reward, next obs and terminated."""
    fields = (shape, "float32"), ((), "int64"), ((), "float32"), (shape, "float32"), ((), "float32")
    return [np.zeros((capacity, *shape), dtype) for shape, dtype in fields]


class Ring:
    def __init__(self, arrays: list[NDArray[Any]]) -> None:
        self._arrays, self._capacity, self.added = arrays, len(arrays[0]), 0

    def add(self, *transition: object) -> None:
        for array, value in zip(self._arrays, transition, strict=True):
            array[self.added % self._capacity] = value
        self.added += 1

    def sample(self, generator: np.random.Generator, rows: int) -> list[NDArray[np.generic]]:
        at = generator.integers(0, min(self.added, self._capacity), rows)
        return [array[at] for array in self._arrays]


def train(setting: Setting, steps: int, seed: int, tell: Callable[[int, float], object]) -> None:
    """Trains on CartPole; calls `tell` with each episode's last step and return."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    env = gymnasium.make("CartPole-v1")
    shape = env.observation_space.shape
    ring, generator = Ring(columns(setting.capacity, shape)), np.random.default_rng(seed)
    dqn = PlainDQN(setting, mlp(shape[0], setting.hidden, int(env.action_space.n)))
    interval = round(1 / setting.updates_per_step)
    obs, _ = env.reset(seed=seed)
    env.action_space.seed(seed)
    earned = 0.0
    for step in range(steps):
        if generator.random() < setting.epsilon:
            action = env.action_space.sample()
        else:
            with torch.no_grad():
                action = int(dqn.network(torch.from_numpy(obs)[None]).argmax(dim=1).item())
        next_obs, reward, terminated, truncated, _ = env.step(action)
        ring.add(obs, action, reward, next_obs, terminated)
        earned += float(reward)
        if terminated or truncated:
            tell(step + 1, earned)
            next_obs, earned = env.reset()[0], 0.0
        obs = next_obs
        if step >= setting.warmup and step % interval == 0:
            dqn.update(ring.sample(generator, setting.batch))
    env.close()
