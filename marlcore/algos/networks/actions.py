"""A space's actions in the form that networks use: enumerated, or scaled to [-1, 1]."""

import math
from collections.abc import Sequence
from functools import cache, reduce
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces as gym
from numpy.typing import NDArray
from torch import nn

from ...checks import brief

MOST = 4096  # joint actions of several components; a network has an output for each


class JointActions:
    """Numbers the actions of a Discrete, MultiDiscrete or MultiBinary action space from 0 to count - 1.

    The components are the digits of a joint action's number; the last component changes fastest.

    Raises: ValueError, which begins with `owner`: the space is of another kind, or has more than 4,096 joint actions.
    """

    def __init__(self, owner: str, space: gymnasium.Space) -> None:
        if not isinstance(space, (gym.Discrete, gym.MultiDiscrete, gym.MultiBinary)):
            expected = "a Discrete, MultiDiscrete or MultiBinary action space"
            raise ValueError(f"{owner}: expected {expected}, got {brief(space)}")
        self._shape: tuple[int, ...] = space.shape
        self._dtype = np.dtype(space.dtype)
        sizes = np.full(space.shape, 2) if isinstance(space, gym.MultiBinary) else getattr(space, "nvec", None)
        self._sizes = [int(space.n)] if sizes is None else [int(size) for size in sizes.ravel()]
        self.count = math.prod(self._sizes)
        if self._shape and self.count > MOST:
            raise ValueError(f"{owner}: expected at most {MOST} joint actions, got {self.count} of {brief(space)}")
        places = np.cumprod([1, *self._sizes[:0:-1]])[::-1]
        self._digits = torch.tensor([places.tolist(), self._sizes])

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        """Returns the numbers int64 [...] of actions [..., *shape] in the form that rows store."""
        if not self._shape:
            return action.long()
        return (action.flatten(-len(self._shape)).long() * self._digits[0].to(action.device)).sum(-1)

    def decode(self, index: NDArray[np.int64]) -> NDArray[np.generic]:
        """Returns the actions [k, ...], in the space's dtype, with these numbers [k]."""
        if not self._shape:
            return index.astype(self._dtype, copy=False)
        components = np.unravel_index(index, self._sizes)
        return np.stack(components, -1).reshape(-1, *self._shape).astype(self._dtype, copy=False)

    def decoded(self, index: torch.Tensor) -> torch.Tensor:
        """Does the same as `decode`, with torch."""
        if self._shape:
            places, sizes = self._digits.to(index.device)
            index = (index[:, None] // places % sizes).reshape(-1, *self._shape)
        return index.to(dtype_of(self._dtype))

    def allowed(self, mask: torch.Tensor | None) -> torch.Tensor | None:
        """Returns which joint actions have only allowed components, bool [..., count]; None without a mask.

        `mask` has the components one after another, bool [..., the sum of their sizes].
        """
        if mask is None or not self._shape:
            return mask
        components: Sequence[torch.Tensor] = torch.split(mask, self._sizes, -1)
        return reduce(lambda left, right: (left[..., None] & right[..., None, :]).flatten(-2), components)


class BoxActions(nn.Module):
    """Scales the actions of a Box of floats with bounds to vectors in [-1, 1]^size.

    Raises: ValueError, which begins with `owner`: the space is of another kind, or a bound is missing.
    """

    middle: torch.Tensor
    reach: torch.Tensor

    def __init__(self, owner: str, space: gymnasium.Space) -> None:
        super().__init__()
        if not isinstance(space, gym.Box) or np.dtype(space.dtype).kind != "f":
            raise ValueError(f"{owner}: expected a Box of floats as the action space, got {brief(space)}")
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not np.isfinite([low, high]).all():
            raise ValueError(f"{owner}: expected an action space with finite bounds, got {brief(space)}")
        self.size = math.prod(space.shape)
        self._space = space
        self._middle, self._reach = low / 2 + high / 2, high / 2 - low / 2  # no sum that could overflow
        # A component of a float64 may vary by less than float32 can tell.
        dtype = torch.float64 if space.dtype == np.float64 else torch.float32
        divisor = np.where(self._reach > 0, self._reach, 1.0)
        self._bounds = [*map(torch.tensor, (self._middle, self._reach, space.low, space.high))]
        self.register_buffer("middle", torch.from_numpy(self._middle.reshape(-1)).to(dtype), persistent=False)
        self.register_buffer("reach", torch.from_numpy(divisor.reshape(-1)).to(dtype), persistent=False)

    def encode(self, action: torch.Tensor) -> torch.Tensor:
        """Scales actions [B, ...] of rows to float32 [B, size] in [-1, 1]; 0 where a component has one value."""
        return ((action.reshape(-1, self.size) - self.middle) / self.reach).float()

    def decode(self, scaled: NDArray[Any]) -> NDArray[Any]:
        """Converts vectors [k, size], clipped to [-1, 1], to actions [k, ...] in the space and of its dtype."""
        space, scaled = self._space, scaled.clip(-1.0, 1.0).reshape(-1, *self._space.shape)
        action: NDArray[Any] = (self._middle + self._reach * scaled).astype(space.dtype)
        return action.clip(space.low, space.high, out=action)

    def decoded(self, scaled: torch.Tensor) -> torch.Tensor:
        """Does the same as `decode`, with torch."""
        middle, reach, low, high = (bound.to(scaled.device) for bound in self._bounds)
        action = middle + reach * scaled.clamp(-1.0, 1.0).reshape(-1, *self._space.shape)
        return torch.clamp(action.to(dtype_of(self._space.dtype)), low, high)


@cache
def dtype_of(dtype: Any) -> torch.dtype:
    """Returns torch's dtype for a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype
