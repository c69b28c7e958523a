"""Converts action tensors between the form in rows and the form in networks; compiled/actions.py converts arrays."""

from functools import cache
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from ...compiled import EnumeratedActions, ScaledActions


class JointActions(EnumeratedActions):
    """Assigns a number to each action of a Discrete, MultiDiscrete or MultiBinary space; see EnumeratedActions."""

    def __init__(self, owner: str, space: gymnasium.Space) -> None:
        super().__init__(owner, space)
        places = np.cumprod([1, *self._sizes[:0:-1]])[::-1]
        self._digits = torch.tensor([places.tolist(), self._sizes])

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        """Returns the numbers int64 [...] of actions [..., *shape] in the form that rows store."""
        if not self._shape:
            return action.long()
        self._digits = self._digits.to(action.device)  # once, since CUDA graphs cannot capture this copy
        return (action.flatten(-len(self._shape)).long() * self._digits[0]).sum(-1)

    def decoded(self, index: torch.Tensor) -> torch.Tensor:
        """Does the same as `decode`, with torch."""
        if self._shape:
            places, sizes = self._digits.to(index.device)
            index = (index[:, None] // places % sizes).reshape(-1, *self._shape)
        return index.to(dtype_of(self._dtype))


class BoxActions(ScaledActions, nn.Module):
    """Scales the actions of a bounded Box of floats to vectors in [-1, 1]^size; see ScaledActions."""

    middle: torch.Tensor
    reach: torch.Tensor

    def __init__(self, owner: str, space: gymnasium.Space) -> None:
        nn.Module.__init__(self)
        ScaledActions.__init__(self, owner, space)
        # The components of a narrow float64 Box may all be one number in float32.
        dtype = torch.float64 if space.dtype == np.float64 else torch.float32
        divisor = np.where(self._reach > 0, self._reach, 1.0)
        self._bounds = [*map(torch.tensor, (self._middle, self._reach, self._space.low, self._space.high))]
        self.register_buffer("middle", torch.from_numpy(self._middle.reshape(-1)).to(dtype), persistent=False)
        self.register_buffer("reach", torch.from_numpy(divisor.reshape(-1)).to(dtype), persistent=False)

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        """Scales actions [B, ...] of rows to float32 [B, size] in [-1, 1]; a component with equal bounds becomes 0."""
        return ((action.reshape(-1, self.size) - self.middle) / self.reach).float()

    def decoded(self, scaled: torch.Tensor) -> torch.Tensor:
        """Does the same as `decode`, with torch."""
        middle, reach, low, high = (bound.to(scaled.device) for bound in self._bounds)
        action = middle + reach * scaled.clamp(-1.0, 1.0).reshape(-1, *self._space.shape)
        return torch.clamp(action.to(dtype_of(self._space.dtype)), low, high)


@cache
def dtype_of(dtype: Any) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


def array_of(tensor: torch.Tensor | None) -> Any:
    """Returns a tensor as an array, which shares the memory of a tensor on the CPU; returns None for None."""
    return None if tensor is None else tensor.detach().cpu().numpy()
