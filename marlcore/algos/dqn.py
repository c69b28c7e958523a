"""Deep Q-learning with a double target and a dueling head.

Mnih et al. 2015, "Human-level control through deep reinforcement learning", Nature 518, pp. 529-533;
van Hasselt et al. 2016, "Deep reinforcement learning with double Q-learning" (arXiv:1509.06461);
Wang et al. 2016, "Dueling network architectures for deep reinforcement learning" (arXiv:1511.06581).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..checks import check_whole
from ..spec import Field
from .common import Head, QNetwork, TargetTrainer, Torso, check_hyperparameters, epsilon_greedy

__all__ = ["DQN", "DQNNetwork", "DQNTrainer"]


@dataclass(frozen=True)
class DQN:
    """Hyperparameters of DQN."""

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

    def __post_init__(self) -> None:
        check_hyperparameters(self)

    def make_network(self, observation: Field, actions: int, stack: int) -> DQNNetwork:
        """An untrained network; its input is [B, *shape], or [B, stack, *shape] when stack > 1."""
        check_whole("make_network actions", actions)
        check_whole("make_network stack", stack)
        return DQNNetwork(self, observation, actions, stack)

    def act(
        self, network: torch.nn.Module, obs: torch.Tensor, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Epsilon-greedy actions [B] for observations [B, ...] on the network's device."""
        return epsilon_greedy(cast(QNetwork, network), obs, epsilon, rng)

    def make_trainer(self, network: torch.nn.Module) -> DQNTrainer:
        """A trainer that updates `network` in place, on its device."""
        return DQNTrainer(self, network)


class DQNNetwork(QNetwork):
    """Observations [B, ...] to action values [B, actions], in units of reward_scale times the reward."""

    def __init__(self, hyper: DQN, observation: Field, actions: int, stack: int) -> None:
        super().__init__(actions)
        self.torso = Torso(observation, stack, hyper.hidden[:-1])
        self.head = Head(self.torso.size, hyper.hidden[-1], actions, hyper.dueling)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self.head(self.torso(obs))
        return values


class DQNTrainer(TargetTrainer):
    """Q-learning towards a target network, with the Huber loss."""

    def __init__(self, hyper: DQN, network: torch.nn.Module) -> None:
        super().__init__(network, hyper)
        self.dqn = hyper

    def update(self, batch: Any) -> dict[str, torch.Tensor]:
        """One step on a batch of B transitions.

        The Huber loss clips the error in the gradient to [-1, 1] (Mnih et al. 2015, Methods, "Training algorithm for
        deep Q-networks"); each row is weighted by `weight`.

        Returns: detached scalars: the loss; q_mean, the mean value of the actions taken, in units of the
            reward; grad_norm, before clipping.
        """
        taken = self.network(batch.obs).gather(1, batch.action[:, None]).squeeze(1)
        errors = functional.huber_loss(taken, self.targets(batch), reduction="none")
        loss = (batch.weight * errors).mean()
        grad_norm = self.step(loss)
        return {
            "loss": loss.detach(),
            "q_mean": taken.detach().mean() / self.dqn.reward_scale,
            "grad_norm": grad_norm,
        }

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """The scaled reward plus the discounted value of the next observation, float32 [B].

        Without `double`: the target network's maximum (Mnih et al. 2015, Algorithm 1). With it: the target network's
        value of the network's best action (van Hasselt et al. 2016, "Double DQN").
        """
        values = self.target(batch.next_obs)
        chooser = self.network(batch.next_obs) if self.dqn.double else values
        best = values.gather(1, chooser.argmax(1, keepdim=True)).squeeze(1)
        targets: torch.Tensor = self.dqn.reward_scale * batch.reward + batch.discount * best
        return targets
