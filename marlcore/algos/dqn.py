"""Deep Q-learning with a double target and a dueling head.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, pp. 529-533;
van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning" (arXiv:1509.06461);
Wang et al. 2016, "Dueling network architectures for deep reinforcement learning" (arXiv:1511.06581).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from ..interfaces import Update
from ..spaces import Spaces
from .first_priority import absolute_error
from .head import Head
from .hyperparameters import check_hyperparameters
from .network import Operation, operations_of
from .passes import Passes
from .qnetwork import QNetwork, best
from .target import TargetTrainer
from .torso import Torso
from .value_based import ValueBased

__all__ = ["DQN", "DQNNetwork", "DQNTrainer"]


@dataclass(frozen=True)
class DQN(ValueBased):
    """Hyperparameters of DQN."""

    owner = "DQN"

    learning_rate: float = 2.5e-4
    """Adam's step size, above 0."""
    hidden: tuple[int, ...] = (128, 64)
    """Units in each fully connected layer, at least one layer; the last is the head's."""
    double: bool = True
    """Choose the next action by the network, evaluate it by the target network (van Hasselt et al. 2016)."""
    dueling: bool = True
    """Estimate the state's value and the actions' advantages separately (Wang et al. 2016)."""
    tau: float = 0.02
    """Fraction of the network mixed into the target after each update, in (0, 1]; used if target_update_freq is 0."""
    target_update_freq: int = 0
    """Updates between copies of the network to the target; 0 moves the target by tau after each update."""
    max_grad_norm: float = 10.0
    """Larger gradients are scaled down to this norm; above 0."""
    reward_scale: float = 0.1
    """Factor on rewards, above 0; errors beyond 1 count linearly, so aim at rewards near 1."""
    actor_priorities: bool = False
    """With prioritized replay: actors compute each transition's first priority (Horgan et al. 2018)."""

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    def first_priority(
        self,
        before: Mapping[str, NDArray[Any]],
        reward: NDArray[Any],
        discount: float,
        after: Mapping[str, NDArray[Any]],
    ) -> NDArray[np.float32]:
        """The absolute error of one step, in units of reward_scale times the reward, as the trainer's."""
        return absolute_error(before, self.reward_scale * reward, discount, after)

    def make_model(self, spaces: Spaces) -> DQNNetwork:
        """An untrained network. Raises ValueError: see JointActions."""
        return DQNNetwork(self, spaces)

    def make_trainer(self, model: torch.nn.Module) -> DQNTrainer:
        """A trainer that updates `model` in place, on its device. Compile the model before."""
        return DQNTrainer(self, cast(QNetwork, model))


class DQNNetwork(QNetwork):
    """Observations to the values [B, actions] of joint actions, in units of reward_scale times the reward."""

    def __init__(self, hyper: DQN, spaces: Spaces) -> None:
        super().__init__("DQN", spaces)
        self.torso = Torso(spaces, hyper.hidden[:-1])
        self.head = Head(self.torso.size, hyper.hidden[-1], self.actions.count, hyper.dueling)

    def forward(self, obs: Any) -> torch.Tensor:
        values: torch.Tensor = self.head(self.torso(obs))
        return values

    def operations(self) -> list[Operation]:
        return [*operations_of(self.torso), *operations_of(self.head)]


class DQNTrainer(TargetTrainer[QNetwork]):
    """Q-learning towards a target network, with the Huber loss."""

    def __init__(self, hyper: DQN, network: QNetwork) -> None:
        super().__init__(network, hyper)
        self.dqn = hyper
        self._passes = Passes(network, DQNNetwork)

    @torch.no_grad()
    def update(self, batch: Any) -> Update:
        """One step on a batch of B transitions.

        The Huber loss clips the error in the gradient to [-1, 1] (Mnih et al. 2015, Methods, "Training algorithm for
        deep Q-networks"); each row is weighted by `weight`.

        Returns: the loss; q_mean, the mean value of the actions taken, in units of the reward; grad_norm, before
            clipping. A row's priority is its absolute error, in units of reward_scale times the reward (Schaul et al.
            2016, "Prioritized experience replay", arXiv:1511.05952, section 3.3).
        """
        targets = self.targets(batch)
        passes = self._passes.now()
        values = passes.forward(batch.obs)
        action = self.network.actions.encode(batch.action)[:, None]
        taken = values.gather(1, action).squeeze(1)
        error = taken - targets
        clipped = error.clamp(-1.0, 1.0)
        slope = batch.weight * clipped / len(error)  # the loss's gradient, with respect to `taken`
        loss = torch.dot(slope, torch.sub(error, clipped, alpha=0.5))
        self.optimizer.zero_grad()
        passes.backward(torch.zeros_like(values).scatter_(1, action, slope[:, None]))
        grad_norm = self.advance()
        metrics = {"loss": loss, "q_mean": taken.mean() / self.dqn.reward_scale, "grad_norm": grad_norm}
        return Update(metrics, priority=error.abs_())

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """The scaled reward plus the discounted value of the next observation, float32 [B].

        Without `double`: the target network's maximum (Mnih et al. 2015, Algorithm 1). With it: the target network's
        value of the network's best action (van Hasselt et al. 2016, "Double DQN"). Both over allowed actions only.
        """
        values = self.target(batch.next_obs)
        chooser = self.network(batch.next_obs) if self.dqn.double else values
        action = best(chooser, self.network.allowed(batch.next_obs))
        future = values.gather(1, action[:, None]).squeeze(1)
        targets: torch.Tensor = self.dqn.reward_scale * batch.reward + batch.discount * future
        return targets
