"""A policy and its critics, and their trainer: what off-policy actor-critic algorithms have in common."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import nn

from ..spaces import Spaces
from .adam import ClippedAdam
from .continuous import ContinuousPolicy
from .critics import TwinCritics
from .hyperparameters import Hyperparameters
from .target import independent_copy

__all__ = ["ActorCritic", "ActorCriticTrainer"]

P = TypeVar("P", bound=ContinuousPolicy)


class ActorCritic(nn.Module, Generic[P]):
    """A policy, which is all that actors need, and its critics."""

    def __init__(self, policy: P, spaces: Spaces, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.acting = policy
        self.critics = TwinCritics(spaces, policy.actions.size, hidden)


class ActorCriticTrainer(Generic[P]):
    """The optimizers of a policy and its critics, and the target networks that follow.

    Args:
        model: whose `acting` part and critics it trains.
        hyper: its hyperparameters.
        followed: the part of the model of which `target` is a copy that follows.
    """

    def __init__(self, model: ActorCritic[P], hyper: Hyperparameters, followed: nn.Module) -> None:
        self.policy, self.critics = model.acting, model.critics
        self.hyper = hyper
        self.target: Any = independent_copy(followed)
        self._followed: list[torch.Tensor] = list(followed.parameters())
        self._followers: list[torch.Tensor] = list(self.target.parameters())
        self.device = self._followed[0].device
        self.policy_optimizer = ClippedAdam(list(self.policy.parameters()), lr=hyper.learning_rate)
        self.critics_optimizer = ClippedAdam(list(self.critics.parameters()), lr=hyper.learning_rate)
        self.updates = 0
        # With its own generator, training resumes exactly from `state_dict`; torch.manual_seed determines the seed.
        self.generator = torch.Generator(self.device).manual_seed(int(torch.randint(2**62, ())))

    def descend(self, optimizer: ClippedAdam, loss: torch.Tensor) -> torch.Tensor:
        """One step of the optimizer's parameters alone; returns the gradient's norm before clipping."""
        optimizer.zero_grad()
        torch.autograd.backward(loss, inputs=optimizer.tensors)
        return optimizer.clip_and_step(self.hyper.max_grad_norm)

    def improve_critics(self, batch: Any, targets: torch.Tensor) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """One step of both critics on their squared errors, towards targets [B]; rows weighted by `weight`.

        Returns: the metrics loss, the sum of both critics'; q_mean, the mean value of the actions taken, in units of
            the reward; grad_norm, before clipping. And the rows' priorities [B]: the mean of both absolute errors.
        """
        taken = self.critics(batch.obs, self.policy.actions.encode(batch.action))
        errors = targets - taken
        loss = (batch.weight * errors.square()).mean(1).sum()
        grad_norm = self.descend(self.critics_optimizer, loss)
        q_mean = taken.detach().mean() / self.hyper.reward_scale
        return {"loss": loss.detach(), "q_mean": q_mean, "grad_norm": grad_norm}, errors.detach().abs().mean(0)

    @torch.no_grad()
    def follow(self) -> None:
        """Moves the target by tau of the way."""
        torch._foreach_lerp_(self._followers, self._followed, self.hyper.tau)

    def normal(self, *shape: int) -> torch.Tensor:
        """Standard normal numbers."""
        return torch.randn(shape, device=self.device, generator=self.generator)

    def state_dict(self) -> dict[str, Any]:
        """The state besides the model that resuming needs; live tensors, so save before the next update."""
        return {
            "target": self.target.state_dict(),
            "policy_optimizer": self.policy_optimizer.state_dict(),
            "critics_optimizer": self.critics_optimizer.state_dict(),
            "updates": self.updates,
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`; the caller restores the model's weights."""
        self.target.load_state_dict(state["target"])
        self.policy_optimizer.load_state_dict(state["policy_optimizer"])
        self.critics_optimizer.load_state_dict(state["critics_optimizer"])
        self.updates = state["updates"]
        self.generator.set_state(state["generator"].cpu())  # generators of all devices take a CPU tensor
