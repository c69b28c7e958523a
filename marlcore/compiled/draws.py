"""Random choices of actions: exploration, and draws from distributions, given the outputs of a network.

A distribution's `outputs` is the number of network outputs that it takes, at the start of each row, and `extras` names
the fields that rows store beside the action. `draw` draws k actions, and `mode` returns the most probable ones.
`mask`, bool [k, outputs], holds the allowed values of each component. `log_std`, float32 [outputs], has the logarithms
of the standard deviations of a Box, otherwise it is None.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..memory import ffi, lib
from ..spec import Field
from .actions import ScaledActions
from .chain import Floats, pointer

DRAWN = "drawn"  # the extra in which rows store what a Gaussian drew
LOG_PROB = "log_prob"  # the extra in which rows store the logarithm of their action's probability
LOG_STD = (-20.0, 2.0)  # least and greatest of SAC, as in its authors' code
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# Actions [k, ...] in the space's dtype, their log-probabilities float32 [k], and further extras of rows
Sampled = tuple[NDArray[Any], Floats, dict[str, NDArray[Any]]]


class Chooser:
    """Chooses an action for each of k rows: the best one, or a random one where the row explores.

    Args:
        action: int64 [k], where choices are written.
        actions: their number.
    """

    def __init__(self, action: NDArray[np.int64], actions: int) -> None:
        self.action, self._shape = action, (len(action), actions)
        self._draws, self._epsilon = np.empty((2, len(action))), np.empty(len(action))
        self._to_action = ffi.from_buffer("int64_t[]", action)
        self._to_draws, self._to_epsilon = doubles_of(self._draws), doubles_of(self._epsilon)

    def take_best(self, outputs: Floats, allowed: NDArray[np.bool_] | None) -> None:
        """Chooses the actions of the greatest outputs [k, at least actions], the first of equal ones."""
        row, flags = outputs.shape[1], flags_of(allowed, self._shape)
        lib.mc_values_best(*self._shape, pointer(outputs), row, flags, self._to_action)

    def explore(self, allowed: NDArray[np.bool_] | None, epsilon: Any, generator: np.random.Generator) -> int:
        """Replaces the actions of the rows that explore by random ones; returns how many do.

        Neither `epsilon`, a number or [k] of them, nor the mask `allowed`, bool [k, actions], changes what the
        generator draws. Each row draws a place from [0, 1), which picks number floor(place * n) of its n allowed
        actions.
        """
        flags = flags_of(allowed, self._shape)
        generator.random(out=self._draws)
        try:
            self._epsilon[...] = epsilon
        except ValueError:
            raise ValueError(f"epsilon: expected a number or {len(self.action)} of them, got {len(epsilon)}") from None
        return int(lib.mc_explore(*self._shape, self._to_draws, self._to_epsilon, flags, self._to_action))

    def __reduce__(self) -> Any:
        return type(self), (self.action, self._shape[1])


def of_members(epsilon: Any, rows: int, members: int) -> Any:
    """Returns the epsilon of each member of each row's team, [rows * members]."""
    return np.repeat(np.broadcast_to(epsilon, rows), members)


def noisy_actions(
    rows: int, actions: ScaledActions, noisy: Callable[[Floats], NDArray[Any]], epsilon: Any,
    generator: np.random.Generator,
) -> Any:  # fmt: skip
    """Returns actions [rows, ...]: with probability epsilon uniform ones of the Box, otherwise those of the policy.

    `noisy` returns these, [rows, size], given standard normal noise [rows, size]; it is called only if a row needs it.
    Epsilon does not change what the generator draws.
    """
    uniform = generator.random(rows) < epsilon
    shape = rows, actions.size
    anywhere, noise = generator.random(shape), generator.standard_normal(shape, np.float32)
    exploring = np.count_nonzero(uniform)
    scaled = 2.0 * anywhere - 1.0 if exploring == rows else noisy(noise)
    if 0 < exploring < rows:
        scaled = np.where(uniform[:, None], 2.0 * anywhere - 1.0, scaled)
    return actions.decode(scaled)


class Categories:
    """Draws the values of a Discrete, or the components of a MultiDiscrete, independent of each other."""

    def __init__(self, space: gym.Discrete | gym.MultiDiscrete) -> None:
        self.sizes = [int(size) for size in np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 0)))]
        self._alone = not space.shape
        self._dtype = np.dtype(space.dtype)
        self.outputs = sum(self.sizes)
        self.extras: dict[str, Field] = {}

    def draw(self, outputs: Any, mask: Any, generator: np.random.Generator, log_std: Any = None) -> Sampled:
        rows, parts = len(outputs), len(self.sizes)
        places = generator.random((parts, rows))
        drawn, log_prob = np.empty((rows, parts), np.int64), np.empty(rows, np.float32)
        lib.mc_categories_draw(
            rows, parts, self.sizes, pointer(outputs), outputs.shape[1], flags_of(mask, (rows, self.outputs)),
            doubles_of(places), ffi.from_buffer("int64_t[]", drawn), pointer(log_prob),
        )  # fmt: skip
        action = drawn[:, 0] if self._alone else drawn
        return action.astype(self._dtype, copy=False), log_prob, {}

    def mode(self, outputs: Any, mask: Any) -> Any:
        outputs = outputs[:, : self.outputs]
        if mask is not None:
            outputs = np.where(mask, outputs, np.where(mask.any(1, keepdims=True), -np.inf, 0.0))
        parts = [part.argmax(1) for part in np.split(outputs, np.cumsum(self.sizes[:-1]), 1)]
        return (parts[0] if self._alone else np.stack(parts, 1)).astype(self._dtype, copy=False)


class Bits:
    """Draws the values of a MultiBinary, each 1 with its own probability."""

    def __init__(self, space: gym.MultiBinary) -> None:
        self._shape: tuple[int, ...] = space.shape
        self._dtype = np.dtype(space.dtype)
        self.outputs = math.prod(space.shape)
        self.extras: dict[str, Field] = {}

    def draw(self, outputs: Any, mask: Any, generator: np.random.Generator, log_std: Any = None) -> Sampled:
        outputs = outputs[:, : self.outputs]
        tail = np.log1p(np.exp(-np.abs(outputs)))
        log_one, log_zero = -(np.maximum(-outputs, 0) + tail), -(np.maximum(outputs, 0) + tail)
        ones = generator.random(outputs.shape) < np.exp(log_one)
        log_prob = np.where(ones, log_one, log_zero).sum(1)
        return ones.reshape(-1, *self._shape).astype(self._dtype), log_prob, {}

    def mode(self, outputs: Any, mask: Any) -> Any:
        return (outputs[:, : self.outputs] > 0).reshape(-1, *self._shape).astype(self._dtype)


class Normals:
    """Draws the components of a Box from normal distributions.

    A draw is in units of half the range from its centre, or of 1 from 0 where the space has no bounds. The environment
    gets it clipped to the space, as is usual (Huang et al. 2022, "The 37 implementation details of proximal policy
    optimization"); rows also store the unclipped draw, since only its probability is known.
    """

    def __init__(self, space: gym.Box) -> None:
        self._shape: tuple[int, ...] = space.shape
        self._dtype = np.dtype(space.dtype)
        self._low, self._high = space.low.reshape(-1), space.high.reshape(-1)
        bounded = np.isfinite(self._low) & np.isfinite(self._high)
        low, high = np.where(bounded, self._low, -1.0), np.where(bounded, self._high, 1.0)
        self._centre, self._half = low / 2 + high / 2, high / 2 - low / 2  # the bounds' sum may exceed a float32
        self.outputs = math.prod(space.shape)
        self.extras = {DRAWN: Field(self._shape, "float32")}

    def draw(self, outputs: Any, mask: Any, generator: np.random.Generator, log_std: Any = None) -> Sampled:
        mean = outputs[:, : self.outputs]
        noise = generator.standard_normal(mean.shape, np.float32)
        drawn = mean + np.exp(log_std) * noise
        log_prob = -(0.5 * noise * noise + log_std + LOG_SQRT_2PI).sum(1)
        return self._clipped(drawn), log_prob, {DRAWN: drawn.reshape(-1, *self._shape)}

    def mode(self, outputs: Any, mask: Any) -> Any:
        return self._clipped(outputs[:, : self.outputs])

    def _clipped(self, drawn: Floats) -> Any:
        with np.errstate(over="ignore"):  # a draw may lie beyond such bounds
            action = self._centre + self._half * drawn
            action = np.minimum(np.maximum(action, self._low), self._high)
            return action.astype(self._dtype).reshape(-1, *self._shape)


def flags_of(mask: NDArray[np.bool_] | None, shape: tuple[int, int]) -> Any:
    """Returns C's view of a mask. Raises ValueError: it has another shape."""
    if mask is None:
        return ffi.NULL
    if mask.shape != shape:
        raise ValueError(f"mask: expected shape {shape}, got {mask.shape}")
    return ffi.from_buffer("uint8_t[]", np.ascontiguousarray(mask, np.bool_))


def doubles_of(array: NDArray[np.float64]) -> Any:
    return ffi.from_buffer("double[]", array)
