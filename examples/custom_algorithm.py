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
from gymnasium.spaces import Box, Discrete
from torch import nn

import marlcore as mc


@dataclass(frozen=True)
class MyDQN(mc.Algorithm):
    """Hyperparameters; on the command line they are options."""

    learning_rate: float = 5e-4
    """Adam's step size."""
    target_every: int = 100
    """Updates between copies of the model to the target."""

    def make_model(self, spaces: mc.Spaces) -> nn.Module:
        if not isinstance(spaces.observation, Box) or not isinstance(spaces.action, Discrete) or spaces.masked:
            raise ValueError(f"MyDQN: expected a Box, a Discrete and no mask, got {spaces}")
        inputs = spaces.stack * int(np.prod(spaces.observation.shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 64), nn.ReLU(), nn.Linear(64, int(spaces.action.n)))

    @torch.inference_mode()
    def act(self, model: nn.Module, obs: Any, *, explore: Any, state: Any, mask: Any, generator: Any) -> mc.Action:
        values = model(obs.float()).cpu().numpy()
        epsilon = 0.0 if explore is None else explore["epsilon"]
        random = generator.integers(values.shape[1], size=len(values))
        return mc.Action(np.where(generator.random(len(values)) < epsilon, random, values.argmax(1)))

    def make_trainer(self, model: nn.Module) -> MyTrainer:
        return MyTrainer(self, model)


class MyTrainer:
    def __init__(self, hyper: MyDQN, model: nn.Module) -> None:
        self.hyper, self.model, self.updates = hyper, model, 0
        self.target = copy.deepcopy(model)
        self.optimizer = torch.optim.Adam(model.parameters(), lr=hyper.learning_rate)

    def update(self, batch: Any) -> mc.Update:
        with torch.no_grad():
            target = batch.reward + batch.discount * self.target(batch.next_obs.float()).amax(1)
        taken = self.model(batch.obs.float()).gather(1, batch.action[:, None]).squeeze(1)
        loss = (batch.weight * nn.functional.smooth_l1_loss(taken, target, reduction="none")).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.updates += 1
        if self.updates % self.hyper.target_every == 0:
            self.target.load_state_dict(self.model.state_dict())
        return mc.Update({"loss": loss.detach()}, priority=(target - taken.detach()).abs())

    def state_dict(self) -> dict[str, Any]:
        return {"target": self.target.state_dict(), "optimizer": self.optimizer.state_dict(), "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


if __name__ == "__main__":
    result = mc.train("gymnasium:CartPole-v1", MyDQN(), mc.Config(total_steps=20_000))
    print(result.returns, result.run_dir)
