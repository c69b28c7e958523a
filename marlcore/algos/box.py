"""Continuous actions: those of a Box, scaled component by component to [-1, 1]."""

from __future__ import annotations

import math
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray
from torch import nn

from ..checks import came

__all__ = ["BoxActions"]


class BoxActions(nn.Module):
    """The actions of a Box with bounds, as vectors in [-1, 1]^size.

    Args:
        owner: the algorithm's name, for error messages.
        space: of floats, of any shape.

    Attributes:
        size: the components of an action.

    Raises: ValueError: the space is of another kind, or a bound is missing.
    """

    middle: torch.Tensor
    reach: torch.Tensor

    def __init__(self, owner: str, space: gymnasium.Space) -> None:
        super().__init__()
        if not isinstance(space, gym.Box) or np.dtype(space.dtype).kind != "f":
            raise ValueError(f"{owner}: expected a Box of floats as the action space, got {came(space)}")
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not np.isfinite([low, high]).all():
            raise ValueError(f"{owner}: expected an action space with finite bounds, got {came(space)}")
        self.size = math.prod(space.shape)
        self._space = space
        self._middle, self._reach = low / 2 + high / 2, high / 2 - low / 2  # no sum that could overflow
        # A component of a float64 may vary by less than float32 can tell.
        dtype = torch.float64 if space.dtype == np.float64 else torch.float32
        divisor = np.where(self._reach > 0, self._reach, 1.0)
        self.register_buffer("middle", torch.from_numpy(self._middle.reshape(-1)).to(dtype), persistent=False)
        self.register_buffer("reach", torch.from_numpy(divisor.reshape(-1)).to(dtype), persistent=False)

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        """Actions [B, ...] of rows as float32 [B, size] in [-1, 1]; 0 where a component has one value."""
        return ((action.reshape(-1, self.size) - self.middle) / self.reach).float()

    def decode(self, scaled: NDArray[Any]) -> NDArray[Any]:
        """The actions [k, ...], in the space's dtype and always inside it, of vectors [k, size] clipped to [-1, 1]."""
        space, scaled = self._space, scaled.clip(-1.0, 1.0).reshape(-1, *self._space.shape)
        action: NDArray[Any] = (self._middle + self._reach * scaled).astype(space.dtype)
        return action.clip(space.low, space.high, out=action)
