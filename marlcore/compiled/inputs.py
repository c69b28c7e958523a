"""Converts observations to rows of a chain's input matrix: numbers to floats, discrete values to one-hot vectors."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..spaces import SpacePart, Spaces
from .chain import Floats
from .moments import Moments, normalized

COPIED = 1024  # up to so many numbers are copied, which is faster than passing their address to the core

Encoder = Callable[[NDArray[Any], Floats], Any]  # from values [k, ...] into the columns [k, size]


class Inputs:
    """Writes observations into a matrix, whose columns are in the order of a torch network's inputs.

    Attributes:
        size: how many columns an observation or, with stacks, a whole stack fills.
        is_flat: whether flattened observations [k, size] are already the matrix, except for their dtype.
        moments: mean and standard deviation by the name of the part that they normalize; empty at first.
    """

    def __init__(self, spaces: Spaces, without: tuple[str, ...] = ()) -> None:
        parts = [part for part in spaces.parts if part.name not in without]
        self._made_of = spaces, without
        self.moments: Moments = {}
        self._is_named = isinstance(spaces.obs, dict)
        self._columns: list[tuple[str, slice, Encoder]] = []
        first = 0
        for part in parts:
            encoder, size = encoder_of(part, spaces.stack)
            self._columns.append((part.name, slice(first, first + size), encoder))
            first += size
        self.size = first
        self.is_flat = not self._is_named and not isinstance(parts[0].space, (gym.Discrete, gym.MultiDiscrete))
        self._is_matrix = self.is_flat and parts[0].field.numpy == np.float32
        self._memory = self._x = self._seen = np.zeros((0, first), np.float32)
        self._shape: Any = None  # of the observations that `_seen` takes into `_x`

    def normalize(self, moments: Moments) -> None:
        self.moments, self._shape = moments, None

    def fill(self, obs: Any, matrix: Floats) -> None:
        """Writes observations [k, ...], an array or arrays by name, into matrix [k, at least size]."""
        for name, columns, encode in self._columns:
            values = obs[name] if self._is_named else obs
            if name in self.moments:
                values = normalized(values, *self.moments[name])
            encode(values, matrix[:, columns])

    def matrix(self, obs: Any) -> Floats:
        """Returns observations [k, ...] as a float32 matrix [k, size], which is valid until the next call."""
        if not self._is_named and obs.shape == self._shape:
            self._seen[...] = obs
        elif not self._is_matrix or self.moments:
            self._fit(len(next(iter(obs.values())) if self._is_named else obs))
            self.fill(obs, self._x)
        else:
            rows = np.ascontiguousarray(obs.reshape(len(obs), self.size), np.float32)
            if rows.size > COPIED:
                return rows
            self._fit(len(rows))
            self._x[...] = rows
            self._shape, self._seen = obs.shape, self._x.reshape(obs.shape)
        return self._x

    def _fit(self, rows: int) -> None:
        """Gives the matrix this number of rows."""
        self._shape = None
        if rows > len(self._memory):
            self._memory = np.zeros((rows, self.size), np.float32)
        if rows != len(self._x):
            self._x = self._memory[:rows]

    def __reduce__(self) -> Any:
        return type(self), self._made_of  # functions inside are not picklable


def encoder_of(part: SpacePart, stack: int) -> tuple[Encoder, int]:
    """Returns a function that writes a part's values, [k, *shape] or [k, stack, *shape], and its number of columns."""
    space = part.space
    if not isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        size = stack * math.prod(part.field.shape)

        def flat(values: NDArray[Any], columns: Floats) -> None:
            columns[...] = values if values.ndim == 2 else values.reshape(len(values), size)

        return flat, size
    component, value = one_hot_places(space)

    def one_hot(values: NDArray[Any], columns: Floats) -> None:
        of_each = values.reshape(len(values), stack, -1)[..., component] == value
        columns[...] = of_each.reshape(len(values), -1)

    return one_hot, stack * len(value)


def one_hot_places(space: gym.Discrete | gym.MultiDiscrete) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns, for each element of the concatenated one-hot vectors, its component and the value that it stands for."""
    sizes = np.atleast_1d(space.nvec if isinstance(space, gym.MultiDiscrete) else space.n)
    starts = np.broadcast_to(space.start, sizes.shape)
    component = np.repeat(np.arange(len(sizes)), sizes)
    value = np.concatenate([start + np.arange(count) for start, count in zip(starts, sizes, strict=True)])
    return component, value
