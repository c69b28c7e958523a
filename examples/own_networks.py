"""Networks of one's own in built-in algorithms.

    python examples/own_networks.py [STEPS]    # GridTorso opens MiniGrid's door; pip install minigrid
    marlcore train --env pettingzoo:butterfly.knights_archers_zombies_v11 --algo dqn \
        --algorithm.network own_networks:EntityTransformer
    marlcore train --env gymnasium:CartPole-v1 --algo ppo --algorithm.network own_networks:SharedTorso

(the last two from the folder examples). docs/guides/own-network.md says what a network gets, and what it returns.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch import nn

import marlcore as mc

WIDTH = 64


class GridTorso(nn.Module):
    """MiniGrid's direction and 7 x 7 cells: each cell's object, colour and state embedded, then convolutions."""

    first: torch.Tensor

    def __init__(self, spaces: mc.Spaces) -> None:
        super().__init__()
        self.cells = nn.Embedding(3 * 16, 16)  # up to 16 objects, colours and states
        self.directions = nn.Embedding(4, 16)
        self.register_buffer("first", torch.arange(3) * 16, persistent=False)
        self.layers = nn.Sequential(
            nn.Conv2d(16, 32, 3),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 3 * 3, WIDTH),
            nn.ReLU(),
        )

    def forward(self, obs: dict[str, torch.Tensor]) -> torch.Tensor:
        cells = self.cells(obs["image"].long() + self.first).sum(-2)  # [B, 7, 7, 16]
        return torch.cat([self.layers(cells.movedim(-1, 1)), self.directions(obs["direction"])], 1)


class EntityTransformer(nn.Module):
    """Attention among entities, the rows of the observation; returns their mean, whatever their order."""

    def __init__(self, spaces: mc.Spaces) -> None:
        super().__init__()
        features = spaces.observation.shape[-1]
        self.embedding = nn.Linear(features, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=WIDTH, dropout=0.0, batch_first=True)
        self.attention = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.attention(self.embedding(obs.float())).mean(1)
        return features


class SharedTorso(nn.Module):
    """A whole model for PPO, whose policy and value stand on the same layers."""

    def __init__(self, spaces: mc.Spaces) -> None:
        super().__init__()
        inputs = spaces.stack * int(np.prod(spaces.observation.shape))
        self.torso = nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh()
        )
        self.to_policy = nn.Linear(WIDTH, int(spaces.action.n))
        self.to_value = nn.Linear(WIDTH, 1)

    def policy(self, obs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.to_policy(self.torso(obs.float()))
        return outputs

    def value(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.to_value(self.torso(obs.float()))
        return values

    def both(self, obs: torch.Tensor) -> tuple[Any, Any]:
        features = self.torso(obs.float())
        return self.to_policy(features), self.to_value(features)


def main(steps: int = 100_000) -> mc.Result:
    """Trains an agent that finds a key, opens a door with it and reaches the goal."""
    algorithm = mc.PPO(
        network=GridTorso, learning_rate=1e-3, batch_size=2_048, epochs=4, entropy_coefficient=0.01, target_kl=None
    )
    learner = mc.LearnerConfig(device="cpu")
    config = mc.Config(total_steps=steps, seed=0, actor=mc.ActorConfig(envs=16), learner=learner)
    result = mc.train("gymnasium:minigrid:MiniGrid-DoorKey-5x5-v0", algorithm, config, progress=False)
    print(f"return {result.returns['agent_0']:.2f} in the last tenth; {result.run_dir}")
    return result


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
