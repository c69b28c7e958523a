"""The base of value networks, their head, and the best of the actions that a mask allows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ...spaces import MASK, Spaces
from .actions import JointActions

FEW = 64  # actions; for more, the product with a square matrix takes longer than a slice and a sum


class QNetwork(nn.Module):
    """Base of networks from observations to the values [B, actions.count] of joint actions: a torso and a head.

    Raises: ValueError: see JointActions.
    """

    torso: nn.Module
    head: nn.Module

    def __init__(self, owner: str, spaces: Spaces) -> None:
        super().__init__()
        self.actions = JointActions(owner, spaces.action)
        self._masked = spaces.masked
        self._stacked = spaces.stack > 1

    def forward(self, obs: Any) -> Any:
        return self.head(self.torso(obs))

    def allowed(self, obs: Any) -> torch.Tensor | None:
        """Which joint actions the mask in a batch's observations allows, bool [B, actions.count]; None without one."""
        if not self._masked:
            return None
        mask = obs[MASK]
        return self.actions.allowed(mask[:, -1] if self._stacked else mask)


class Head(nn.Module):
    """Features [..., inputs] to one value per action [..., actions], through a layer of `hidden` units.

    With `dueling`, that layer feeds the state's value and the actions' advantages, minus their mean (Wang et al. 2016,
    arXiv:1511.06581, equation 9). Both share the layer, so dueling costs little.
    """

    aggregate: torch.Tensor

    def __init__(self, inputs: int, hidden: int, actions: int, dueling: bool) -> None:
        super().__init__()
        self.dueling = dueling
        self.few = actions <= FEW
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, actions + dueling)
        # Applied to the advantages and the value: the value minus the mean advantage.
        rest = torch.cat([torch.full((actions, 1), -1 / actions), torch.ones(1, 1)])
        # For few actions one product adds the advantage too.
        whole = rest + torch.eye(actions + 1, actions) if self.few else rest
        self.register_buffer("aggregate", whole, persistent=False)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.combined(self.output(torch.relu(self.hidden(features))))

    def combined(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values [..., actions], for the outputs of the last layer."""
        if not self.dueling:
            return outputs
        values = torch.matmul(outputs, self.aggregate)
        return values if self.few else outputs[..., :-1] + values


def best(values: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Each row's action of the highest value [B, actions] among those `allowed` (bool, None: all), int64 [B].

    Where none is allowed, it is some action.
    """
    return values.argmax(1) if allowed is None else values.masked_fill(~allowed, -math.inf).argmax(1)
