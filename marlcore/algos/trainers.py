"""What trainers have in common: the state that resuming needs, and networks that follow others."""

from __future__ import annotations

import copy
from itertools import chain
from typing import Any, ClassVar, TypeVar

import torch
from torch import nn

N = TypeVar("N", bound=nn.Module)


class Resumable:
    """A trainer whose state is that of some of its attributes.

    Attributes:
        kept: their names; each has a state_dict, or is a generator, a tensor or a plain value.
    """

    kept: ClassVar[tuple[str, ...]]

    def state_dict(self) -> dict[str, Any]:
        """Live tensors, so save before the next update."""
        return {name: _state_of(getattr(self, name)) for name in self.kept}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in self.kept:
            part, saved = getattr(self, name), state[name]
            if hasattr(part, "load_state_dict"):
                part.load_state_dict(saved)
            elif isinstance(part, torch.Generator):
                part.set_state(saved.cpu())  # generators of all devices take a CPU tensor
            elif isinstance(part, torch.Tensor):
                part.data.copy_(saved)
            else:
                setattr(self, name, saved)


def _state_of(part: Any) -> Any:
    if hasattr(part, "state_dict"):
        return part.state_dict()
    if isinstance(part, torch.Generator):
        return part.get_state()
    return part.detach() if isinstance(part, torch.Tensor) else part


class FollowedTrainer(Resumable):
    """The trainer of a model, of which a target network follows the part `followed`.

    Attributes:
        target: a copy of that part.
        updates: made so far.
    """

    def __init__(self, hyper: Any, followed: nn.Module) -> None:
        self.hyper = hyper
        self.target: Any = independent_copy(followed)
        self._followed: list[torch.Tensor] = list(followed.parameters())
        self._followers: list[torch.Tensor] = list(self.target.parameters())
        self.device = self._followed[0].device
        self.updates = 0

    @torch.no_grad()
    def follow(self, share: float) -> None:
        """Moves the target by this share of the way; 1 copies exactly."""
        torch._foreach_lerp_(self._followers, self._followed, share)


def independent_copy(network: N) -> N:
    """A copy without gradients, whose tensors share no memory with the network's."""
    twin = copy.deepcopy(network).requires_grad_(False)
    # A deep copy preserves shared storage, and a published network is views of one flat tensor.
    for tensor in chain(twin.parameters(), twin.buffers()):
        tensor.data = tensor.data.clone()
    return twin


def own_generator(device: torch.device | str = "cpu") -> torch.Generator:
    """A generator with which training resumes exactly from its state; torch.manual_seed determines the seed."""
    return torch.Generator(device).manual_seed(int(torch.randint(2**62, ())))
