"""Soft actor-critic (SAC) with a learned temperature, for continuous actions.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications" (arXiv:1812.05905).
A stochastic policy maximizes the value of its actions plus a temperature times its entropy. The temperature is learned,
so that the entropy stays near a target. Entropies are those of actions scaled to [-1, 1].
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch.nn import functional

from ..compiled import LOG_SQRT_2PI, LOG_STD
from ..declared import Number
from ..interfaces import Update
from ..spaces import Spaces
from .bases.actor_critic import NoisyPolicy, NoisyPolicyTrainer
from .bases.hyperparameters import Positive
from .networks.actor_critic import ActorCritic, ContinuousPolicy, continuous_actor_critic
from .networks.stand_in import faster

Normal = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class SAC(NoisyPolicy):
    """Hyperparameters of SAC."""

    temperature: Positive = 0.1
    """The initial weight of the entropy, alpha in the paper, in units of reward_scale times the reward; above 0."""
    target_entropy: Annotated[float | None, Number()] = None
    """The entropy that the temperature aims at; None: minus the number of an action's components (appendix D)."""

    def make_model(self, spaces: Spaces) -> ActorCritic:
        return continuous_actor_critic(self, spaces, GaussianPolicy)

    def make_trainer(self, model: Any) -> "SACTrainer":
        return SACTrainer(self, model)


class GaussianPolicy(ContinuousPolicy):
    """Maps observations to a normal distribution for each component, squashed by tanh into [-1, 1].

    A call returns the means [B, size] and the logarithms of the standard deviations [B, size] before tanh.
    """

    outputs = 2

    def distribution(self, outputs: torch.Tensor) -> Normal:
        mean, log_std = outputs.chunk(2, 1)
        return mean, log_std.clamp(*LOG_STD)

    def mode(self, distribution: Normal) -> torch.Tensor:
        return distribution[0].tanh()

    def noisy(self, distribution: Normal, noise: torch.Tensor, explore: Mapping[str, Any]) -> torch.Tensor:
        mean, log_std = distribution
        return (mean + log_std.exp() * noise).tanh_()

    def sample(self, distribution: Normal, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Turns standard normal noise [B, size] into actions [B, size]; returns these and their log-densities [B].

        The logarithm of tanh's derivative 1 - tanh(x)^2 is 2 (log 2 - x - softplus(-2 x)), which avoids cancellation
        (Haarnoja et al. 2018, appendix C, equation 21).
        """
        mean, log_std = distribution
        x = mean + log_std.exp() * noise
        density = -0.5 * noise.square() - log_std - LOG_SQRT_2PI
        slope = 2 * (math.log(2) - x - functional.softplus(-2 * x))
        return x.tanh(), (density - slope).sum(1)


class SACTrainer(NoisyPolicyTrainer):
    """Trains critics, policy and temperature at each update; only the critics have target copies."""

    saved = (*NoisyPolicyTrainer.saved, "log_temperature", "temperature_optimizer")

    def __init__(self, hyper: SAC, model: ActorCritic) -> None:
        super().__init__(hyper, model, source=model.critics)
        size = self.policy.actions.size
        self.target_entropy = -float(size) if hyper.target_entropy is None else hyper.target_entropy
        start = math.log(hyper.temperature)
        self.log_temperature = torch.full((), start, device=self.device, requires_grad=True)
        self.temperature_optimizer = self.adam([self.log_temperature])

    def step(self, batch: Any) -> Update:
        """Makes one step on a batch of B transitions (Haarnoja et al. 2018, Algorithm 1); see `improve_critics`."""
        temperature = self.log_temperature.detach().exp()
        metrics, priority = self.improve_critics(batch, self.targets(batch))
        noise = self.normal(len(batch.reward), self.policy.actions.size)
        action, log_prob = self.policy.sample(faster(self.policy)(batch.obs), noise)
        value = faster(self.critics)(batch.obs, action).amin(0)
        loss = (temperature * log_prob - value).mean()  # equation 7
        self.descend(self.policy_optimizer, loss)
        entropy = -log_prob.detach().mean()
        self.descend(self.temperature_optimizer, self.log_temperature * (entropy - self.target_entropy))  # equation 18
        self.updates += 1
        self.soft_update(self.hyper.tau)
        metrics |= {"policy_loss": loss.detach(), "entropy": entropy, "temperature": temperature}
        return Update(metrics, priority)

    @torch.no_grad()
    def targets(self, batch: Any) -> torch.Tensor:
        """Returns scaled rewards plus discounted soft values of next observations, float32 [B] (equations 2, 3, 5)."""
        noise = self.normal(len(batch.reward), self.policy.actions.size)
        action, log_prob = self.policy.sample(faster(self.policy)(batch.next_obs), noise)
        future = faster(self.target)(batch.next_obs, action).amin(0)
        return self.bootstrapped(batch, future - self.log_temperature.exp() * log_prob)
