"""Random choices of actions: exploration, and draws from distributions, given the outputs of a network.

A distribution's `outputs` is the number of network outputs that it takes, at the start of each row, and `extras` names
the fields that rows store beside the action. `draw` draws k actions, and `mode` returns the most probable ones.
`mask`, bool [k, outputs], holds the allowed values of each component. `log_std`, float32 [outputs], has the logarithms
of the standard deviations of a Box, otherwise it is None.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..memory import ffi, lib
from ..spec import Field
from .actions import ScaledActions
from .chain import FLOATS, NO_LAYERS, Floats

DRAWN = "drawn"  # the extra in which rows store what a Gaussian drew
LOG_PROB = "log_prob"  # the extra in which rows store the logarithm of their action's probability
LOG_STD = (-20.0, 2.0)  # least and greatest of SAC, as in its authors' code
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# Actions [k, ...] in the space's dtype, their log-probabilities float32 [k], and further extras of rows
Sampled = tuple[NDArray[Any], Floats, dict[str, NDArray[Any]]]

_INTS, _DOUBLES, _FLAGS = (ffi.typeof(kind) for kind in ("int64_t[]", "double[]", "uint8_t[]"))


@lru_cache(16)
def uniform_of(generator: np.random.Generator) -> Any:
    """Returns the core's form of a generator: it draws the numbers that `generator.random` would draw next."""
    bits = generator.bit_generator.cffi
    next_double, state = ffi.cast("double (*)(void *)", bits.next_double), ffi.cast("void *", bits.state)
    return ffi.new("struct mc_uniform *", {"next": next_double, "state": state})


class Choices:
    """Chooses actions by a network's values of `actions` actions, for any number of rows."""

    def __init__(self, actions: int) -> None:
        self.actions, self._rows = actions, -1

    def choose(
        self, rest: Any, x: Floats, allowed: NDArray[np.bool_] | None, epsilon: Any = None,
        generator: np.random.Generator | None = None,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Returns each row's best action among those allowed, the first of equal ones, after exploring by epsilon.

        `rest` and `x`: what `begun` of a network returned. Epsilon None explores nothing and draws nothing; see
        `explore`.
        """
        rows, row = x.shape
        if rows > self._rows:
            self._grow(rows)
        uniform, one = ffi.NULL, 0.0
        if epsilon is not None:
            uniform, one = uniform_of(generator), epsilon
            if isinstance(epsilon, np.ndarray) or math.isnan(epsilon):  # NaN asks the core for those of the rows
                put_epsilon(self._epsilon[:rows], epsilon)
                one = math.nan
        flags = ffi.NULL if allowed is None else flags_of(allowed, (rows, self.actions))
        lib.mc_act_by_values(self._raw, rest, rows, ffi.from_buffer(FLOATS, x), row, flags, uniform, one)
        return self._action.copy() if rows == self._rows else self._action[:rows].copy()

    def _grow(self, rows: int) -> None:
        self._rows, self._action, self._epsilon = rows, np.empty(rows, np.int64), np.empty(rows)
        self._kept = draws = np.empty(2 * rows)
        arrays = {"draws": doubles_of(draws), "epsilon": doubles_of(self._epsilon), "action": ints_of(self._action)}
        self._raw = ffi.new("struct mc_choices *", {"actions": self.actions, **arrays})

    def __reduce__(self) -> Any:
        return type(self), (self.actions,)


def explore(
    action: NDArray[np.int64], actions: int, allowed: NDArray[np.bool_] | None, epsilon: Any,
    generator: np.random.Generator,
) -> int:  # fmt: skip
    """Replaces the actions [k] of the rows that explore by random ones of `actions`; returns how many do.

    Neither `epsilon`, a number or [k] of them, nor the mask `allowed`, bool [k, actions], changes what the
    generator draws. Each row draws a place from [0, 1), which picks number floor(place * n) of its n allowed
    actions.
    """
    rows, of_rows = len(action), np.empty(len(action))
    put_epsilon(of_rows, epsilon)
    arrays = doubles_of(generator.random((2, rows))), doubles_of(of_rows), flags_of(allowed, (rows, actions))
    return int(lib.mc_explore(rows, actions, *arrays, ints_of(action)))


def put_epsilon(of_rows: NDArray[np.float64], epsilon: Any) -> None:
    try:
        of_rows[:] = epsilon
    except ValueError:
        raise ValueError(f"epsilon: expected a number or {len(of_rows)} of them, got {len(epsilon)}") from None


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
        self._sizes = np.array(self.sizes)
        self._alone = not space.shape
        self._dtype = np.dtype(space.dtype)
        self.outputs = sum(self.sizes)
        self.extras: dict[str, Field] = {}

    def draw(self, outputs: Any, mask: Any, generator: np.random.Generator, log_std: Any = None) -> Sampled:
        return self.act(NO_LAYERS, outputs, mask, generator)

    def act(self, rest: Any, x: Floats, mask: Any, generator: np.random.Generator) -> Sampled:
        """Draws by the outputs of a network; `rest` and `x`: what its `begun` returned."""
        (rows, row), parts = x.shape, len(self.sizes)
        drawn, log_prob = np.empty((rows, parts), np.int64), np.empty(rows, np.float32)
        lib.mc_act_by_categories(
            rest, rows, ffi.from_buffer(FLOATS, x), row, parts, ffi.from_buffer(_INTS, self._sizes),
            flags_of(mask, (rows, self.outputs)), uniform_of(generator), ffi.from_buffer(_INTS, drawn),
            ffi.from_buffer(FLOATS, log_prob),
        )  # fmt: skip
        action = drawn.reshape(rows) if self._alone else drawn
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
    return ffi.from_buffer(_FLAGS, np.ascontiguousarray(mask, np.bool_))


def doubles_of(array: NDArray[np.float64]) -> Any:
    return ffi.from_buffer(_DOUBLES, array)


def ints_of(array: NDArray[np.int64]) -> Any:
    return ffi.from_buffer(_INTS, array)
