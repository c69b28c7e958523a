"""The base of value networks, and the best of the actions that a mask allows."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from ..spaces import MASK, Spaces
from .joint import JointActions
from .network import Network

__all__ = ["QNetwork", "best"]


class QNetwork(Network):
    """Base of networks whose forward pass returns the values [B, actions.count] of joint actions.

    Attributes:
        actions: the joint actions of the action space.

    Raises: ValueError: see JointActions.
    """

    def __init__(self, owner: str, spaces: Spaces) -> None:
        super().__init__()
        self.actions = JointActions(owner, spaces.action)
        self._masked = spaces.masked
        self._stacked = spaces.stack > 1
        self.register_load_state_dict_pre_hook(_rename_0_1_0)  # type: ignore[no-untyped-call]

    def allowed(self, obs: Any) -> torch.Tensor | None:
        """Which joint actions the mask in a batch's observations allows, bool [B, actions.count]; None without one."""
        if not self._masked:
            return None
        mask = obs[MASK]
        return self.actions.allowed(mask[:, -1] if self._stacked else mask)


def _rename_0_1_0(network: nn.Module, state: dict[str, torch.Tensor], prefix: str, *_: Any) -> None:
    """Gives the tensors of a checkpoint of version 0.1.0 their names of today; they are the same, in the same order."""
    names = list(network.state_dict(prefix=prefix))
    if f"{prefix}torso.layers.0.weight" in state and len(state) == len(names):
        tensors = list(state.values())
        state.clear()
        state.update(zip(names, tensors, strict=True))


def best(values: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Each row's allowed action of the highest value, int64 [B]; some action where none is allowed.

    Args:
        values: [B, actions].
        allowed: bool [B, actions]; None allows all.
    """
    return values.argmax(1) if allowed is None else values.masked_fill(~allowed, -math.inf).argmax(1)
