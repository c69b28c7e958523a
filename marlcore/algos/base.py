"""Bases of the package's algorithms: checked hyperparameters, actions without gradients, trainers that resume."""

import copy
from abc import abstractmethod
from collections.abc import Mapping
from itertools import chain
from typing import Annotated, Any, ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
import torch
from torch import nn

from ..declared import Number, Sizes, Whole, check_declared
from ..interfaces import Action, Algorithm
from .fast import unrecorded

Positive: TypeAlias = Annotated[float, Number(above=0)]
Share: TypeAlias = Annotated[float, Number(above=0, high=1)]
AtLeast1: TypeAlias = Annotated[int, Whole(1)]
Layers: TypeAlias = Annotated[tuple[int, ...], Sizes()]

N = TypeVar("N", bound=nn.Module)


class Request(NamedTuple):
    """The arguments of `Algorithm.act` beside the model and the observations."""

    explore: Mapping[str, Any] | None
    state: Mapping[str, torch.Tensor] | None
    mask: torch.Tensor | None
    generator: np.random.Generator


class Hyperparameters(Algorithm):
    """Base of dataclasses of hyperparameters, whose ranges their fields declare; see declared.py."""

    def __post_init__(self) -> None:
        check_declared(self, self.owner)

    @property
    def owner(self) -> str:
        """The algorithm's name in messages."""
        return type(self).__name__

    def act(self, model: nn.Module, obs: Any, **request: Any) -> Action:
        """See `Algorithm.act` and `chosen`."""
        with torch.inference_mode():
            return self.chosen(model, obs, Request(**request))

    @abstractmethod
    def chosen(self, model: Any, obs: Any, request: Request) -> Action:
        """The actions for k observations; greedy ones where `request.explore` is None. `faster(model)` runs it."""


class Resumable:
    """A trainer whose state is that of its attributes `kept`: with a state_dict, a generator, a tensor or a value."""

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


class TargetTrainer(Resumable):
    """Base of trainers with a target: a slowly updated copy of the model's part `source`."""

    def __init__(self, hyper: Any, source: nn.Module) -> None:
        self.hyper = hyper
        self.target: Any = independent_copy(source)
        self._source: list[torch.Tensor] = list(source.parameters())
        self._target: list[torch.Tensor] = list(self.target.parameters())
        self.device = self._source[0].device
        self.updates = 0

    @unrecorded
    def soft_update(self, share: float) -> None:
        """Moves the target by this share of the way to its source; 1 copies exactly."""
        torch._foreach_lerp_(self._target, self._source, share)

    def bootstrapped(self, batch: Any, future: torch.Tensor) -> torch.Tensor:
        """The targets [..., B]: the scaled rewards plus the discounted values [..., B] of the next observations."""
        return torch.add(batch.discount * future, batch.reward, alpha=self.hyper.reward_scale)

    def metrics(self, loss: torch.Tensor, taken: torch.Tensor, grad_norm: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss; q_mean, the mean value of the actions taken, in units of the reward; grad_norm, before clipping."""
        q_mean = taken.detach().sum() / (taken.numel() * self.hyper.reward_scale)
        return {"loss": loss.detach(), "q_mean": q_mean, "grad_norm": grad_norm}


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
