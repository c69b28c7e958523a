"""The base of value networks, and the best of the actions that a mask allows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ...spaces import MASK, Spaces
from .actions import JointActions


class QNetwork(nn.Module):
    """Base of networks from observations to the values [B, actions.count] of joint actions: a torso and a head.

    Attributes:
        actions: the joint actions of the action space.

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


def best(values: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Each row's allowed action of the highest value, int64 [B]; some action where none is allowed.

    Args:
        values: [B, actions].
        allowed: bool [B, actions]; None allows all.
    """
    return values.argmax(1) if allowed is None else values.masked_fill(~allowed, -math.inf).argmax(1)
