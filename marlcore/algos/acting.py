"""The base of the package's algorithms: hyperparameters that are checked, and actions without gradients."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ..declared import Number, Sizes, Whole, check_declared
from ..interfaces import Action, Algorithm
from .fast import faster

Positive: TypeAlias = Annotated[float, Number(above=0)]
AtLeast1: TypeAlias = Annotated[int, Whole(1)]
Layers: TypeAlias = Annotated[tuple[int, ...], Sizes()]


class Request(NamedTuple):
    """The arguments of `Algorithm.act` beside the model and the observations."""

    explore: Mapping[str, Any] | None
    state: Mapping[str, torch.Tensor] | None
    mask: torch.Tensor | None
    generator: np.random.Generator


class Acting(Algorithm):
    """Base of dataclasses of hyperparameters, whose ranges their fields declare; see declared.py.

    Attributes:
        owner: the algorithm's name in messages.
    """

    def __post_init__(self) -> None:
        check_declared(self, self.owner)

    @property
    def owner(self) -> str:
        return type(self).__name__

    def act(
        self,
        model: torch.nn.Module,
        obs: Any,
        *,
        explore: Mapping[str, Any] | None,
        state: Mapping[str, torch.Tensor] | None,
        mask: torch.Tensor | None,
        generator: np.random.Generator,
    ) -> Action:
        """See `Algorithm.act` and `chosen`."""
        with torch.inference_mode():
            return self.chosen(faster(model), obs, Request(explore, state, mask, generator))

    @abstractmethod
    def chosen(self, model: Any, obs: Any, request: Request) -> Action:
        """The actions for k observations, or where `request.explore` is None greedy ones."""
