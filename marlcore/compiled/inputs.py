"""Turns observations into rows of a chain's input matrix: numbers into floats, discrete values into one-hot vectors."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..spaces import SpacePart, Spaces
from .chain import Floats, padded_zeros
from .moments import Moments, normalized

Encoder = Callable[[NDArray[Any], Floats], Any]  # from values [k, ...] into the columns [k, size]


class Inputs:
    """Writes observations into a matrix, whose columns are in the order of a torch network's inputs.

    Attributes:
        size: how many columns an observation fills or, with stacks, a whole stack.
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
        self._is_matrix = not self._is_named and parts[0].field.numpy == np.float32

    def fill(self, obs: Any, matrix: Floats) -> None:
        """Writes observations [k, ...], an array or arrays by name, into matrix [k, at least size]."""
        for name, columns, encode in self._columns:
            values = obs[name] if self._is_named else obs
            if name in self.moments:
                values = normalized(values, *self.moments[name])
            encode(values, matrix[:, columns])

    def into(self, matrix: Floats) -> Callable[[Any], None]:
        """Returns a function of observations that fills this matrix faster than `fill`; `moments` must be empty."""
        if self._is_named:
            return partial(self.fill, matrix=matrix)
        ((_, columns, encode),) = self._columns
        part = matrix[:, columns]
        return lambda obs: encode(obs, part)

    def matrix(self, obs: Any) -> Floats:
        """Returns observations [k, ...] as a float32 matrix: unchanged if they already are one, else as a new one."""
        if self._is_matrix and not self.moments:
            if obs.shape == (len(obs), self.size) and obs.dtype == np.float32 and obs.flags.c_contiguous:
                rows: Floats = obs
                return rows
            return np.ascontiguousarray(obs.reshape(len(obs), self.size), np.float32)
        values = next(iter(obs.values())) if isinstance(obs, dict) else obs
        matrix = padded_zeros(len(values), self.size)
        self.fill(obs, matrix)
        return matrix

    def __reduce__(self) -> Any:
        return type(self), self._made_of  # functions inside are not picklable


def encoder_of(part: SpacePart, stack: int) -> tuple[Encoder, int]:
    """Returns a function that writes a part, [k, *shape] or [k, stack, *shape], and how many columns that fills."""
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
    """Returns, for each place of a one-hot vector, the component and the component's value that set the place to 1."""
    sizes = np.atleast_1d(space.nvec if isinstance(space, gym.MultiDiscrete) else space.n)
    starts = np.broadcast_to(space.start, sizes.shape)
    component = np.repeat(np.arange(len(sizes)), sizes)
    value = np.concatenate([start + np.arange(count) for start, count in zip(starts, sizes, strict=True)])
    return component, value
