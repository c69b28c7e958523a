"""Implicit quantile networks, with a double target and a dueling head.

Dabney et al. 2018, "Implicit quantile networks for distributional reinforcement learning" (arXiv:1806.06923).
The network learns the whole distribution of the return: its input is an observation and a fraction tau in
[0, 1], its output the tau-quantile of each action's return.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch.nn import functional

from ..compiled import quantile_loss
from ..interfaces import Update
from ..spaces import Spaces
from .bases.hyperparameters import AtLeast1, Layers, LearningRate, Positive, Units
from .bases.q_learning import FeedforwardQLearning, QTrainer
from .bases.trainers import seeded_generator
from .networks.custom import torso_of
from .networks.initialization import initialize
from .networks.qnetwork import QNetwork, best
from .networks.stand_in import faster
from .networks.torso import Dense


@dataclass(frozen=True)
class IQN(FeedforwardQLearning):
    """Hyperparameters of IQN."""

    learning_rate: LearningRate = 1e-3
    """Adam's step size, above 0, usually 1e-4 to 1e-3; a number or a schedule, such as
    "linear(1e-3, 0, 1000000)". The default was chosen on five tasks (docs/zoo.md)."""
    hidden: Layers = (64, 64)
    """Units in each fully connected layer, at least one; the head has the last, after the embedding."""
    n_cos: Units = 64
    """Cosines in a fraction's embedding, at least 1 (Dabney et al. 2018, equation 4)."""
    n_tau: AtLeast1 = 8
    """Fractions drawn per transition for the prediction, N in the paper, at least 1."""
    n_tau_prime: AtLeast1 = 8
    """Fractions drawn per transition for the target, N' in the paper, at least 1."""
    n_policy: AtLeast1 = 8
    """Evenly spaced fractions whose mean is an action's value, K in the paper, at least 1."""
    kappa: Positive = 1.0
    """Size of error beyond which the loss grows linearly, above 0."""
    reward_scale: Positive = 0.1
    """Factor on rewards, above 0; keep returns at a few times kappa."""

    def priority_of(self, error: NDArray[Any]) -> NDArray[Any]:
        """Returns the loss for each error, since the trainer's priorities are losses.

        Actors compute only the mean of the quantiles, so all quantiles are assumed to equal this mean. Each error is
        weighted by 1/2, the mean of tau.
        """
        return quantile_loss(error, self.n_tau, self.kappa)

    def make_model(self, spaces: Spaces) -> "IQNNetwork":
        return IQNNetwork(self, spaces)

    def make_trainer(self, model: Any) -> "IQNTrainer":
        return IQNTrainer(self, model)


class IQNNetwork(QNetwork):
    """A QNetwork whose values are means of quantiles."""

    frequencies: torch.Tensor
    midpoints: torch.Tensor

    def __init__(self, hyper: IQN, spaces: Spaces) -> None:
        super().__init__(hyper, spaces, torso_of(hyper, spaces, hyper.hidden[:-1]))
        self.embedding = Dense(hyper, hyper.n_cos, (self.torso.size,))
        initialize(hyper, self.embedding)
        midpoints = (torch.arange(hyper.n_policy) + 0.5) / hyper.n_policy
        self.register_buffer("midpoints", midpoints[None], persistent=False)
        self.register_buffer("frequencies", math.pi * torch.arange(hyper.n_cos), persistent=False)

    def forward(self, obs: Any, taus: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the quantiles [B, N, actions] at the fractions `taus`, [B, N] or [1, N].

        Without `taus`, returns the mean [B, actions] of n_policy quantiles, at the midpoints of equal strips of [0, 1].
        Midpoints approximate a distribution best (Dabney et al. 2018, arXiv:1710.10044, Lemma 2); IQN's paper draws
        fractions (section 3). The embedding of a fraction multiplies the observation's features (equation 4).
        """
        fractions = self.midpoints if taus is None else taus
        embedded = self.embedding(torch.cos(fractions[..., None] * self.frequencies))
        quantiles: torch.Tensor = self.head(self.torso(obs)[:, None] * embedded)
        return quantiles.mean(1) if taus is None else quantiles


class IQNTrainer(QTrainer):
    """Trains a network by quantile regression towards a target network."""

    saved = (*QTrainer.saved, "generator")

    def __init__(self, hyper: IQN, network: IQNNetwork) -> None:
        super().__init__(hyper, network)
        self.generator = seeded_generator(self.device)

    def step(self, batch: Any) -> Update:
        """Makes one step on a batch of B transitions (Dabney et al. 2018, equation 3); `weight` weighs the rows.

        A row's priority is its loss without `weight`. Rainbow also takes its loss as priority; it models
        returns by another distribution (Hessel et al. 2018, arXiv:1710.02298, "The integrated agent").
        """
        taus = self._fractions(len(batch.action), self.hyper.n_tau)
        action = self.network.actions.encode(batch.action)
        predicted = _of_action(faster(self.network)(batch.obs, taus), action)
        errors = quantile_huber_loss(predicted, self.targets(batch), taus, self.hyper.kappa)
        loss = (batch.weight * errors).mean()
        grad_norm = self.descend(self.optimizer, loss)
        self.move_target()
        return Update(self.metrics(loss, predicted, grad_norm), priority=errors.detach())

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """Returns the scaled reward plus the discounted quantiles of the next observation, float32 [B, n_tau_prime].

        The next action is the allowed action with the highest value by the target network (Dabney et al. 2018,
        equation 2) or, with `double`, by the network.
        """
        target = faster(self.target)
        chooser = (faster(self.network) if self.hyper.double else target)(batch.next_obs)
        action = best(chooser, self.network.allowed(batch.next_obs))
        taus = self._fractions(len(action), self.hyper.n_tau_prime)
        future = _of_action(target(batch.next_obs, taus), action)
        return self.bootstrapped(batch, future.t()).t()

    def _fractions(self, rows: int, count: int) -> torch.Tensor:
        return torch.rand(rows, count, device=self.device, generator=self.generator)


def quantile_huber_loss(
    predicted: torch.Tensor, target: torch.Tensor, taus: torch.Tensor, kappa: float
) -> torch.Tensor:
    """Returns the loss [B] of quantiles `predicted` at the fractions `taus`, [B, N], given samples `target` [B, N'].

    The Huber loss of a quantile and a sample is weighted by tau if the sample exceeds the quantile, otherwise by
    1 - tau; the loss is the sum over N of the mean over N' (Dabney et al. 2018, equation 3).
    """
    shape = (*predicted.shape, target.shape[1])
    prediction, sample = predicted[:, :, None].expand(shape), target[:, None, :].expand(shape)
    huber = functional.huber_loss(prediction, sample, reduction="none", delta=kappa) / kappa
    loss: torch.Tensor = (taus[:, :, None] - (sample < prediction).float()).abs() * huber
    return loss.mean(2).sum(1)


def _of_action(quantiles: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """Returns the quantiles [B, N] of each row's action [B] from those of all actions, [B, N, actions]."""
    index = action[:, None, None].expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(2, index).squeeze(2)
