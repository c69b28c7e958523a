"""Implicit quantile networks, with a double target and a dueling head.

Dabney et al. 2018, "Implicit quantile networks for distributional reinforcement learning" (arXiv:1806.06923).
The network learns the whole distribution of the return: its input is an observation and a fraction tau in
[0, 1], its output the tau-quantile of each action's return.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from ..checks import check_whole
from ..spec import Field
from .common import (
    Head,
    QNetwork,
    TargetTrainer,
    Torso,
    check_hyperparameters,
    check_positive,
    epsilon_greedy,
)

__all__ = ["IQN", "IQNNetwork", "IQNTrainer", "quantile_huber_loss"]


@dataclass(frozen=True)
class IQN:
    """Hyperparameters of IQN."""

    learning_rate: float = 2.5e-4
    """Adam's step size, above 0."""
    hidden: tuple[int, ...] = (64, 64)
    """Units in each fully connected layer, at least one; the last is the head's, after the embedding."""
    n_cos: int = 64
    """Cosines in a fraction's embedding, at least 1 (Dabney et al. 2018, equation 4)."""
    n_tau: int = 8
    """Fractions drawn per transition for the prediction, N in the paper, at least 1."""
    n_tau_prime: int = 8
    """Fractions drawn per transition for the target, N' in the paper, at least 1."""
    n_policy: int = 8
    """Evenly spaced fractions whose mean is an action's value, K in the paper, at least 1."""
    kappa: float = 1.0
    """Errors beyond this count linearly, above 0."""
    double: bool = True
    """Choose the next action by the network, evaluate it by the target network."""
    dueling: bool = True
    """Estimate the state's quantile and the actions' advantages over it separately."""
    tau: float = 0.02
    """Fraction of the network mixed into the target after each update, in (0, 1]; used if target_update_freq is 0."""
    target_update_freq: int = 0
    """Updates between copies of the network to the target; 0 moves the target by tau after each update."""
    max_grad_norm: float = 10.0
    """Larger gradients are scaled down to this norm; above 0."""
    reward_scale: float = 0.1
    """Factor on rewards, above 0; keep returns at a few times kappa."""

    def __post_init__(self) -> None:
        check_hyperparameters(self)
        check_positive("IQN", kappa=self.kappa)
        for name in ("n_cos", "n_tau", "n_tau_prime", "n_policy"):
            check_whole(f"IQN {name}", getattr(self, name))

    def make_network(self, observation: Field, actions: int, stack: int) -> IQNNetwork:
        """An untrained network; its input is [B, *shape], or [B, stack, *shape] when stack > 1."""
        check_whole("make_network actions", actions)
        check_whole("make_network stack", stack)
        return IQNNetwork(self, observation, actions, stack)

    def act(
        self, network: torch.nn.Module, obs: torch.Tensor, epsilon: float, rng: np.random.Generator
    ) -> NDArray[np.int64]:
        """Epsilon-greedy actions [B] for observations [B, ...] on the network's device."""
        return epsilon_greedy(cast(QNetwork, network), obs, epsilon, rng)

    def make_trainer(self, network: torch.nn.Module) -> IQNTrainer:
        """A trainer that updates `network` in place, on its device."""
        return IQNTrainer(self, cast(IQNNetwork, network))


class IQNNetwork(QNetwork):
    """Observations [B, ...] to action values [B, actions], in units of reward_scale times the reward."""

    frequencies: torch.Tensor
    midpoints: torch.Tensor

    def __init__(self, hyper: IQN, observation: Field, actions: int, stack: int) -> None:
        super().__init__(actions)
        self.torso = Torso(observation, stack, hyper.hidden[:-1])
        self.embedding = nn.Linear(hyper.n_cos, self.torso.size)
        self.head = Head(self.torso.size, hyper.hidden[-1], actions, hyper.dueling)
        midpoints = (torch.arange(hyper.n_policy) + 0.5) / hyper.n_policy
        self.register_buffer("midpoints", midpoints[None], persistent=False)
        self.register_buffer("frequencies", math.pi * torch.arange(hyper.n_cos), persistent=False)

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """The mean over n_policy quantiles, at the midpoints of equal strips of [0, 1].

        The paper draws the fractions at random (section 3). Midpoints vary less, approximate the mean best (Dabney et
        al. 2018, arXiv:1710.10044, Lemma 2), and need no random numbers to act.
        """
        return self.quantiles(obs, self.midpoints).mean(1)

    def quantiles(self, obs: torch.Tensor, taus: torch.Tensor) -> torch.Tensor:
        """The quantiles [B, N, actions] at the fractions [B, N], or [1, N] for the same fractions in every row.

        The fraction's embedding multiplies the observation's features (Dabney et al. 2018, equation 4).
        """
        features = self.torso(obs)[:, None]
        embedded = torch.relu(self.embedding(torch.cos(taus[..., None] * self.frequencies)))
        values: torch.Tensor = self.head(features * embedded)
        return values


class IQNTrainer(TargetTrainer):
    """Quantile regression towards a target network."""

    def __init__(self, hyper: IQN, network: IQNNetwork) -> None:
        super().__init__(network, hyper)
        self.iqn = hyper
        # With its own generator, training resumes exactly from `state_dict`; torch.manual_seed determines the seed.
        seed = int(torch.randint(2**62, ()))
        self.generator = torch.Generator(self.device).manual_seed(seed)

    def update(self, batch: Any) -> dict[str, torch.Tensor]:
        """One step on a batch of B transitions (Dabney et al. 2018, equation 3), rows weighted by `weight`.

        Returns: detached scalars: the loss; q_mean, the mean value of the actions taken, in units of the
            reward; grad_norm, before clipping.
        """
        taus = self._fractions(len(batch.action), self.iqn.n_tau)
        network = cast(IQNNetwork, self.network)
        predicted = _of_action(network.quantiles(batch.obs, taus), batch.action)
        errors = quantile_huber_loss(predicted, self.targets(batch), taus, self.iqn.kappa)
        loss = (batch.weight * errors).mean()
        grad_norm = self.step(loss)
        return {
            "loss": loss.detach(),
            "q_mean": predicted.detach().mean() / self.iqn.reward_scale,
            "grad_norm": grad_norm,
        }

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """The scaled reward plus the discounted quantiles of the next observation, float32 [B, n_tau_prime].

        The action is the target network's best (Dabney et al. 2018, equation 2), or the network's with `double`.
        """
        target = cast(IQNNetwork, self.target)
        chooser = self.network if self.iqn.double else target
        best = chooser(batch.next_obs).argmax(1)
        taus = self._fractions(len(best), self.iqn.n_tau_prime)
        future = _of_action(target.quantiles(batch.next_obs, taus), best)
        targets: torch.Tensor = self.iqn.reward_scale * batch.reward[:, None] + batch.discount[:, None] * future
        return targets

    def _fractions(self, rows: int, count: int) -> torch.Tensor:
        return torch.rand(rows, count, device=self.device, generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        """TargetTrainer's state, with the state of the generator of fractions."""
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`; the caller restores the network's weights."""
        super().load_state_dict(state)
        self.generator.set_state(state["generator"].cpu())  # generators of all devices take a CPU tensor


def quantile_huber_loss(
    predicted: torch.Tensor, target: torch.Tensor, taus: torch.Tensor, kappa: float
) -> torch.Tensor:
    """Loss [B] of the quantiles [B, N] at the fractions `taus` [B, N], given samples [B, N'] of the target.

    A pair's Huber loss is weighted by tau if the target lies above the prediction, by 1 - tau if below; the loss is the
    sum over N of the mean over N' (Dabney et al. 2018, equation 3).
    """
    shape = (*predicted.shape, target.shape[1])
    prediction, sample = predicted[:, :, None].expand(shape), target[:, None, :].expand(shape)
    huber = functional.huber_loss(prediction, sample, reduction="none", delta=kappa) / kappa
    loss: torch.Tensor = (taus[:, :, None] - (sample < prediction).float()).abs() * huber
    return loss.mean(2).sum(1)


def _of_action(quantiles: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
    """The quantiles [B, N] of each row's action [B], out of [B, N, actions]."""
    index = action[:, None, None].expand(-1, quantiles.shape[1], 1)
    return quantiles.gather(2, index).squeeze(2)
