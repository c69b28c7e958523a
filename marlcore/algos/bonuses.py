"""Bonuses for states that were seen rarely; parts of a model that the learner trains and actors may act by."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..declared import Number
from ..observations import ALONE
from .base import independent_copy
from .networks.moments import RunningMoments
from .state_table import StateTable

CLIP = 5.0  # of normalized inputs: Burda et al. 2018, section 2.4


class CountBonus(nn.Module):
    """scale / sqrt(n + offset) of a state that was counted n times.

    Strehl & Littman 2008, "An analysis of model-based interval estimation for Markov decision processes" (MBIE-EB, with
    offset 0); Bellemare et al. 2016, "Unifying count-based exploration and intrinsic motivation" (arXiv:1606.01868).
    For counts of actions too, let a state be a tuple with the action.
    """

    def __init__(self, most: int, scale: float = 1.0, offset: float = 0.01) -> None:
        """See `StateTable` for `most` and states; once it is full, all further states are counted together.

        Raises: ValueError: `most` is below 1, `scale` below 0, or `offset` not above 0.
        """
        super().__init__()
        self.scale = Number(0).checked("CountBonus scale", scale)
        self.offset = Number(above=0).checked("CountBonus offset", offset)
        self.table = StateTable(most, dtype=torch.float64).requires_grad_(False)

    def count(self, states: Any) -> None:
        """Counts B states, in place."""
        rows = self.table.add(states)
        counts = self.table.values
        counts.data.index_add_(0, rows, torch.ones_like(rows, dtype=counts.dtype))

    def counts(self, states: Any) -> torch.Tensor:
        """How often each of B states was counted, float64 [B]."""
        return self.table(states)  # type: ignore[no-any-return]

    def forward(self, states: Any) -> torch.Tensor:
        """The bonuses of B states, float32 [B]."""
        bonus: torch.Tensor = self.scale * (self.counts(states) + self.offset).rsqrt()
        return bonus.float()


class RNDBonus(nn.Module):
    """The error of a network that learns the outputs of a random one: random network distillation.

    Burda et al. 2018, "Exploration by random network distillation" (arXiv:1810.12894). Inputs are normalized by their
    running moments and clipped to [-5, 5] (section 2.4). Bonuses are divided by the running deviation of errors; the
    paper divides by that of their discounted sums.
    """

    def __init__(self, shape: tuple[int, ...], network: Callable[[], nn.Module] | None = None) -> None:
        """`network` makes a network from float32 [B, *shape] to [B, n], and is called twice; by default two layers."""
        super().__init__()

        def default() -> nn.Module:
            return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 64), nn.ReLU(), nn.Linear(64, 32))

        make = network or default
        self.predictor, self.target = make(), independent_copy(make())
        self.inputs, self.errors = RunningMoments({ALONE: shape}), RunningMoments({ALONE: ()})

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        """The bonuses of B observations [B, *shape], float32 [B], without a gradient."""
        with torch.no_grad():
            return self._error(obs) / self.errors.deviation(ALONE).float()

    def loss(self, obs: torch.Tensor) -> torch.Tensor:
        """The mean error, whose gradient trains `predictor`; takes the observations [B, *shape] into the moments."""
        self.inputs.update(obs)
        error = self._error(obs)
        self.errors.update(error.detach())
        return error.mean()

    def _error(self, obs: torch.Tensor) -> torch.Tensor:
        inputs = self.inputs.normalized_part(ALONE, obs, CLIP)
        return (self.predictor(inputs) - self.target(inputs)).square().mean(1)
