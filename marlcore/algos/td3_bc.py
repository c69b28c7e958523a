"""TD3+BC: TD3 on data that other policies gathered; the learned policy also imitates the data's actions.

Fujimoto & Gu 2021, "A minimalist approach to offline reinforcement learning" (arXiv:2106.06860).
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from .bases.actor_critic import DelayedPolicy, DelayedPolicyTrainer
from .bases.hyperparameters import Positive


@dataclass(frozen=True)
class TD3BC(DelayedPolicy):
    """Hyperparameters of TD3+BC: those of TD3 and the weight of the critic's value in the policy's loss.

    The paper normalizes observations, as `learner.obs_norm` does.
    """

    alpha: Positive = 2.5
    """Weight of the normalized values; the squared distance from the data's actions has weight 1. Above 0, usually 1 to
    4 (section 5)."""

    def make_trainer(self, model: Any) -> "TD3BCTrainer":
        return TD3BCTrainer(self, model)


class TD3BCTrainer(DelayedPolicyTrainer):
    """Trains as TD3 does, with a policy loss that also imitates the data's actions."""

    def policy_loss(self, batch: Any, action: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Returns the squared distance from the data's actions, minus lambda times the value (equations 3 and 5).

        lambda is alpha divided by the mean absolute `value` over the batch, as in the authors' code.
        """
        weight = self.hyper.alpha / value.detach().abs().mean().clamp(min=1e-8)
        away = functional.mse_loss(action, self.policy.actions.encode(batch.action))
        loss: torch.Tensor = away - weight * value.mean()
        return loss
