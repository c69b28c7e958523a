"""Deep Q-learning with a double target and a dueling head.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, pp. 529-533;
van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning" (arXiv:1509.06461);
Wang et al. 2016, "Dueling network architectures for deep reinforcement learning" (arXiv:1511.06581).
"""

from dataclasses import dataclass
from typing import Any

import torch

from ..interfaces import Update
from ..spaces import Spaces
from .fast import faster, passes
from .networks.own import torso_of, whole_network
from .networks.qnetwork import QNetwork, best
from .value_based import FeedforwardQLearning, QTrainer


@dataclass(frozen=True)
class DQN(FeedforwardQLearning):
    """Hyperparameters of DQN."""

    def make_model(self, spaces: Spaces) -> QNetwork:
        whole = whole_network(self, spaces, "values")
        return QNetwork(self, spaces, torso_of(self, spaces, self.hidden[:-1], (), whole, "values"))

    def make_trainer(self, model: Any) -> "DQNTrainer":
        return DQNTrainer(self, model)


class DQNTrainer(QTrainer):
    """Q-learning towards a target network, with the Huber loss."""

    @torch.no_grad()
    def update(self, batch: Any) -> Update:
        """One step on a batch of B transitions.

        The Huber loss clips the error in the gradient to [-1, 1] (Mnih et al. 2015, Methods, "Training algorithm for
        deep Q-networks"); each row is weighted by `weight`.

        A row's priority is its absolute error, in units of reward_scale times the reward (Schaul et al. 2016,
        "Prioritized experience replay", arXiv:1511.05952, section 3.3).
        """
        self.follow_schedules(batch)
        network = passes(self.network)
        values, next_values = network.forward(batch.obs, batch.next_obs if self.hyper.double else None)
        targets = self.targets(batch, next_values)
        action = self.network.actions.encode(batch.action)[:, None]
        taken = values.gather(1, action).squeeze(1)
        error = taken - targets
        clipped = error.clamp(-1.0, 1.0)
        slope = (batch.weight * clipped).div_(len(error))  # the loss's gradient, with respect to `taken`
        loss = torch.dot(slope, torch.sub(error, clipped, alpha=0.5))
        gradient = torch.zeros_like(values).scatter_(1, action, slope[:, None])
        penalties = self.penalize(batch, values, action, gradient)
        self.optimizer.zero_grad()
        network.backward(gradient)
        grad_norm = self.advance()
        metrics = self.metrics(sum(penalties.values(), loss), taken, grad_norm) | penalties
        return Update(metrics, priority=error.abs_())

    def penalize(
        self, batch: Any, values: torch.Tensor, action: torch.Tensor, gradient: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Further terms of the loss by name; here none. Adds their gradient to that of the values [B, actions].

        `action`, int64 [B, 1], are the actions taken.
        """
        return {}

    @torch.no_grad()
    def targets(self, batch: Any, chooser: torch.Tensor | None = None) -> torch.Tensor:
        """The scaled reward plus the discounted value of the next observation, float32 [B].

        Without `double`: the target network's maximum (Mnih et al. 2015, Algorithm 1). With it: the target network's
        value of the network's best action (van Hasselt et al. 2016, "Double DQN"), by the network's values `chooser`
        [B, actions] of the next observation if they are known. Both over allowed actions only.
        """
        values = faster(self.target)(batch.next_obs)
        if not self.hyper.double:
            chooser = values
        elif chooser is None:
            chooser = faster(self.network)(batch.next_obs)
        action = best(chooser, self.network.allowed(batch.next_obs))
        return self.bootstrapped(batch, values.gather(1, action[:, None]).squeeze(1))
