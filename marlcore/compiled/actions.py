"""A space's actions in the form that networks use: enumerated, or scaled to [-1, 1]."""

import math
from functools import reduce
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief

MOST = 4096  # joint actions of several components; a network has an output for each


class EnumeratedActions:
    """Numbers the actions of a Discrete, MultiDiscrete or MultiBinary action space from 0 to count - 1.

    The components are the digits of a joint action's number; the last component changes fastest.

    Attributes:
        count: how many actions there are.
        are_numbers: whether `decode` returns its argument.

    Raises ValueError if the space is of another kind or has over 4,096 joint actions; the message begins with `owner`.
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
        self.are_numbers = not self._shape and self._dtype == np.int64
        if self._shape and self.count > MOST:
            raise ValueError(f"{owner}: expected at most {MOST} joint actions, got {self.count} of {brief(space)}")

    def decode(self, index: NDArray[np.int64]) -> NDArray[np.generic]:
        """Returns the actions [k, ...], in the space's dtype, that have the numbers `index` [k]."""
        if not self._shape:
            return index.astype(self._dtype, copy=False)
        components = np.unravel_index(index, self._sizes)
        return np.stack(components, -1).reshape(-1, *self._shape).astype(self._dtype, copy=False)

    def allowed(self, mask: Any) -> Any:
        """Returns which joint actions have only allowed components, bool [..., count]; None without a mask.

        `mask`, an array or a tensor, is bool [..., the sum of the components' sizes], one component after another.
        """
        if mask is None or not self._shape:
            return mask
        ends = np.cumsum(self._sizes).tolist()
        components = [mask[..., end - size : end] for end, size in zip(ends, self._sizes, strict=True)]
        lead = mask.shape[:-1]
        return reduce(lambda left, right: (left[..., None] & right[..., None, :]).reshape(*lead, -1), components)


class ScaledActions:
    """Maps vectors in [-1, 1]^size to the actions of a Box of floats with finite bounds.

    Raises ValueError if the space is of another kind or lacks a bound; the message begins with `owner`.
    """

    def __init__(self, owner: str, space: gymnasium.Space) -> None:
        if not isinstance(space, gym.Box) or np.dtype(space.dtype).kind != "f":
            raise ValueError(f"{owner}: expected a Box of floats as the action space, got {brief(space)}")
        low, high = space.low.astype(np.float64), space.high.astype(np.float64)
        if not np.isfinite([low, high]).all():
            raise ValueError(f"{owner}: expected an action space with finite bounds, got {brief(space)}")
        self.size = math.prod(space.shape)
        self._space = space
        self._middle, self._reach = low / 2 + high / 2, high / 2 - low / 2  # no sum that could overflow

    def decode(self, scaled: NDArray[Any]) -> Any:
        """Converts vectors [k, size], clipped to [-1, 1], to actions [k, ...] in the space and of its dtype."""
        space = self._space
        scaled = np.minimum(np.maximum(scaled, -1.0), 1.0).reshape(-1, *space.shape)
        action = (self._middle + self._reach * scaled).astype(space.dtype)
        return np.minimum(np.maximum(action, space.low, out=action), space.high, out=action)


class TeamChoices:
    """Describes the Discrete actions of a team's members, who may differ in their number of choices.

    Attributes:
        members: the number of members.
        count: the largest number of choices that a member has.
    """

    def __init__(self, choices: list[int]) -> None:
        self.members, self.count = len(choices), max(choices)
        self._are_alike = min(choices) == self.count
        self._valid = np.arange(self.count) < np.array(choices)[:, None]
        starts = np.cumsum([0, *choices[:-1]])
        self._places = np.where(self._valid, starts[:, None] + np.arange(self.count), 0)  # in a mask

    def allowed(self, mask: NDArray[np.bool_] | None, rows: int) -> NDArray[np.bool_] | None:
        """Returns which choices each member may take, bool [rows * members, count]; None if each may take all `count`.

        `mask`, bool [rows, the sum of the members' choices], has one member after another; None forbids no choice."""
        if self._are_alike:
            return None if mask is None else mask.reshape(-1, self.count)
        if mask is None:
            return np.tile(self._valid, (rows, 1))
        return (mask[:, self._places] & self._valid).reshape(-1, self.count)
