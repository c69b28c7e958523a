"""Gradient steps on a network with a target network that follows it."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, Generic, TypeVar

import torch
from torch import nn

from .adam import ClippedAdam
from .hyperparameters import TargetHyperparameters

__all__ = ["TargetTrainer", "independent_copy"]

N = TypeVar("N", bound=nn.Module)


class TargetTrainer(Generic[N]):
    """A network's optimizer and its target network."""

    def __init__(self, network: N, hyper: TargetHyperparameters) -> None:
        self.network = network
        self.hyper = hyper
        self.parameters: list[torch.Tensor] = list(network.parameters())
        self.device = self.parameters[0].device
        self.target = independent_copy(network)
        self.followers: list[torch.Tensor] = list(self.target.parameters())
        self.optimizer = ClippedAdam(self.parameters, lr=hyper.learning_rate)
        self.updates = 0

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """One gradient step on `loss`, then the target's update; returns the gradient's norm before clipping."""
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        return self.advance()

    def advance(self) -> torch.Tensor:
        """A step by the parameters' gradients, then the target's update; returns their norm before clipping."""
        grad_norm = self.optimizer.clip_and_step(self.hyper.max_grad_norm)
        self.updates += 1
        self._update_target()
        return grad_norm

    def _update_target(self) -> None:
        every = self.hyper.target_update_freq
        if every and self.updates % every:
            return
        with torch.no_grad():  # one call for all tensors; a share of 1 copies exactly
            torch._foreach_lerp_(self.followers, self.parameters, 1.0 if every else self.hyper.tau)

    def state_dict(self) -> dict[str, Any]:
        """The state besides the network that resuming needs; live tensors, so save before the next update."""
        return {
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state returned by `state_dict`; the caller restores the network's weights."""
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.updates = state["updates"]


def independent_copy(network: N) -> N:
    """A copy without gradients, whose tensors share no memory with the network's."""
    twin = copy.deepcopy(network).requires_grad_(False)
    # A deep copy preserves shared storage, and a published network is views of one flat tensor.
    for tensor in chain(twin.parameters(), twin.buffers()):
        tensor.data = tensor.data.clone()
    return twin
