"""An algorithm of one's own: Q-learning towards a target network, in one file.

    python examples/custom_algorithm.py
    marlcore train --env gymnasium:CartPole-v1 --algo custom_algorithm:MyDQN --algorithm.learning-rate 1e-3

(the second from the folder examples). `marlcore.Algorithm` documents the methods.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

import marlcore as mc


@dataclass(frozen=True)
class MyDQN:
    """Hyperparameters; on the command line they are options."""

    learning_rate: float = 5e-4
    """Adam's step size."""
    target_every: int = 100
    """Updates between copies of the network to the target."""

    def make_network(self, observation: mc.Field, actions: int, stack: int) -> nn.Module:
        inputs = stack * int(np.prod(observation.shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, actions))

    @torch.inference_mode()
    def act(self, network: nn.Module, obs: torch.Tensor, epsilon: float, rng: np.random.Generator) -> Any:
        values = network(obs.float()).cpu().numpy()
        random = rng.integers(values.shape[1], size=len(values))
        return np.where(rng.random(len(values)) < epsilon, random, values.argmax(1))

    def make_trainer(self, network: nn.Module) -> MyTrainer:
        return MyTrainer(self, network)


class MyTrainer:
    def __init__(self, hyper: MyDQN, network: nn.Module) -> None:
        self.hyper, self.network, self.updates = hyper, network, 0
        self.target = copy.deepcopy(network)
        self.optimizer = torch.optim.Adam(network.parameters(), lr=hyper.learning_rate)

    def update(self, batch: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            best = self.target(batch.next_obs.float()).amax(1)
        taken = self.network(batch.obs.float()).gather(1, batch.action[:, None]).squeeze(1)
        loss = nn.functional.smooth_l1_loss(taken, batch.reward + batch.discount * best)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.hyper.target_every == 0:
            self.target.load_state_dict(self.network.state_dict())
        return {"loss": loss.detach(), "q_mean": taken.detach().mean()}

    def state_dict(self) -> dict[str, Any]:
        return {"target": self.target.state_dict(), "optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


if __name__ == "__main__":
    result = mc.train("gymnasium:CartPole-v1", MyDQN(), mc.Config(total_steps=20_000))
    print(result.returns, result.run_dir)
