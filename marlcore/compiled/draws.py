"""Random choices of actions, given a network's outputs: exploration, and draws from distributions.

All distributions are classes with the same members. A distribution uses the first `outputs` numbers of each row of a
network's outputs; `extras` are the fields that rows store beside the action. `draw` returns a random action for each
row, `mode` the most probable one. The argument `mask`, bool [k, outputs], tells which values of each component are
allowed; `log_std`, float32 [outputs], holds the logarithms of a Box's standard deviations, None for other spaces.
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
from .chain import NULL, Floats, pointer, put_rows

DRAWN = "drawn"  # the extra in which rows store what a Gaussian drew
LOG_PROB = "log_prob"  # the extra in which rows store the logarithm of their action's probability
LOG_STD = (-20.0, 2.0)  # SAC's bounds of a log standard deviation, as in its authors' code
LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)

# Actions [k, ...] in the space's dtype, their log-probabilities float32 [k], and further extras of rows
Sampled = tuple[NDArray[Any], Floats, dict[str, NDArray[Any]]]

act_by_values = lib.mc_act_by_values  # looked up once
INTS, DOUBLES, FLAGS = (ffi.typeof(kind) for kind in ("int64_t[]", "double[]", "uint8_t[]"))


@lru_cache(16)
def uniform_of(generator: np.random.Generator) -> Any:
    """Returns a C struct by which the core draws from `generator` the same numbers as `generator.random` would."""
    bits = generator.bit_generator.cffi
    next_double, state = ffi.cast("double (*)(void *)", bits.next_double), ffi.cast("void *", bits.state)
    return ffi.new("struct mc_uniform *", {"next": next_double, "state": state})


class Choices:
    """Chooses one of `actions` actions in each row by the actions' values, for any number of rows.

    Args:
        dueling: whether a network outputs the actions' advantages, followed by the state's value.
        valued: whether `values` is called.
    """

    def __init__(self, actions: int, dueling: bool = False, valued: bool = False) -> None:
        self._made_of = actions, dueling, valued
        self._actions, self._rows = actions, -1
        self._generator: np.random.Generator | None = None  # from which `_uniform` draws

    def choose(
        self, begun: Any, rows: int, allowed: NDArray[np.bool_] | None, epsilon: Any = None,
        generator: np.random.Generator | None = None,
    ) -> NDArray[np.int64]:  # fmt: skip
        """Returns each row's allowed action of the highest value (the first of equals), or explores as `explore` does.

        The rows are those of a network's `begun`. If epsilon is None, no row explores and the generator draws nothing.
        """
        uniform, is_array = NULL, False
        if rows > self._rows:
            self._grow(rows)
        if epsilon is None:
            epsilon = 0.0
        else:
            if generator is not self._generator:
                self._generator, self._uniform = generator, uniform_of(generator)
            uniform, is_array = self._uniform, type(epsilon) is not float and isinstance(epsilon, np.ndarray)
            if is_array:
                put_epsilon(self._epsilon[:rows], epsilon)
                epsilon = 0.0
        flags = NULL if allowed is None else flags_of(allowed, (rows, self._actions))
        act_by_values(self._raw, begun, flags, uniform, epsilon, is_array)
        return (self._action if rows == self._rows else self._action[:rows]).copy()

    def values(self, rows: int) -> dict[str, Floats]:
        """Returns the values of the actions `taken` in the last choice, of `rows` rows, and of the `best` actions."""
        return {"taken": self._taken[:rows].copy(), "best": self._best[:rows].copy()}

    def _grow(self, rows: int) -> None:
        actions, dueling, valued = self._made_of
        self._rows = -1  # so that the next call does all of this if an interrupt comes in between
        self._action, self._epsilon = np.empty(rows, np.int64), np.empty(rows)
        self._draws, (self._taken, self._best) = np.empty(2 * rows), np.empty((2, rows), np.float32)
        draws, epsilon = (ffi.from_buffer(DOUBLES, array) for array in (self._draws, self._epsilon))
        arrays = {"draws": draws, "epsilon": epsilon, "action": ffi.from_buffer(INTS, self._action)}
        if valued:
            arrays |= {"taken": pointer(self._taken), "best": pointer(self._best)}
        self._raw = ffi.new("struct mc_choices *", {"actions": actions, "dueling": dueling, **arrays})
        self._rows = rows

    def __reduce__(self) -> Any:
        return type(self), self._made_of


def explore(
    action: NDArray[np.int64], actions: int, allowed: NDArray[np.bool_] | None, epsilon: Any,
    generator: np.random.Generator,
) -> int:  # fmt: skip
    """Replaces actions [k] by random ones, each with probability epsilon; returns how many rows explored.

    `epsilon` is a number or an array [k], and `allowed` a mask, bool [k, actions]; neither changes which numbers the
    generator draws. For each row the generator draws a number u in [0, 1), and the random action is number floor(u * n)
    of the row's n allowed actions.
    """
    rows, of_rows = len(action), np.empty(len(action))
    put_epsilon(of_rows, epsilon)
    draws, epsilons = (ffi.from_buffer(DOUBLES, array) for array in (generator.random((2, rows)), of_rows))
    flags = flags_of(allowed, (rows, actions))
    return int(lib.mc_explore(rows, actions, draws, epsilons, flags, ffi.from_buffer(INTS, action)))


def put_epsilon(of_rows: NDArray[np.float64], epsilon: Any) -> None:
    try:
        of_rows[:] = epsilon
    except ValueError:
        raise ValueError(f"epsilon: expected a number or {len(of_rows)} numbers, got {len(epsilon)}") from None


def of_members(epsilon: Any, rows: int, members: int) -> Any:
    """Repeats `epsilon`, a number or [rows], for each member of a row's team; returns [rows * members]."""
    return np.repeat(np.broadcast_to(epsilon, rows), members)


def noisy_actions(
    rows: int, actions: ScaledActions, noisy: Callable[[Floats], NDArray[Any]], epsilon: Any,
    generator: np.random.Generator,
) -> Any:  # fmt: skip
    """Returns actions [rows, ...]; each is drawn uniformly from the Box with probability epsilon, else by the policy.

    `noisy` maps standard normal noise [rows, size] to the policy's scaled actions [rows, size], and is called only if
    some row's action is not drawn uniformly. Epsilon does not change which numbers the generator draws.
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
    """Draws actions of a Discrete, or of a MultiDiscrete, whose components are independent of each other."""

    def __init__(self, space: gym.Discrete | gym.MultiDiscrete) -> None:
        self.sizes = [int(size) for size in np.atleast_1d(getattr(space, "nvec", getattr(space, "n", 0)))]
        self._sizes = np.array(self.sizes)
        self._alone = not space.shape
        self._dtype = np.dtype(space.dtype)
        self.outputs = sum(self.sizes)
        self.extras: dict[str, Field] = {}

    def draw(self, outputs: Any, mask: Any, generator: np.random.Generator, log_std: Any = None) -> Sampled:
        begun = ffi.new("struct mc_begun *")
        return self.act(begun, put_rows(outputs, begun), mask, generator)

    def act(self, begun: Any, rows: int, mask: Any, generator: np.random.Generator) -> Sampled:
        """Draws actions, one for each of the rows of a network's `begun`."""
        parts = len(self.sizes)
        drawn, log_prob = np.empty((rows, parts), np.int64), np.empty(rows, np.float32)
        sizes, flags = ffi.from_buffer(INTS, self._sizes), flags_of(mask, (rows, self.outputs))
        into = ffi.from_buffer(INTS, drawn), pointer(log_prob)
        lib.mc_act_by_categories(begun, parts, sizes, flags, uniform_of(generator), *into)
        action = drawn.reshape(rows) if self._alone else drawn
        return action.astype(self._dtype, copy=False), log_prob, {}

    def mode(self, outputs: Any, mask: Any) -> Any:
        outputs = outputs[:, : self.outputs]
        if mask is not None:
            outputs = np.where(mask, outputs, np.where(mask.any(1, keepdims=True), -np.inf, 0.0))
        parts = [part.argmax(1) for part in np.split(outputs, np.cumsum(self.sizes[:-1]), 1)]
        return (parts[0] if self._alone else np.stack(parts, 1)).astype(self._dtype, copy=False)


class Bits:
    """Draws actions of a MultiBinary; each bit is 1 with a probability of its own."""

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

    Draws of -1 and 1 mean a component's lower and upper bound; where a bound is missing, draws are not scaled. The
    environment gets the draw clipped to the space, as is usual (Huang et al. 2022, "The 37 implementation details of
    proximal policy optimization"). Rows also store the unclipped draw, to which the stored log-probability belongs.
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
        with np.errstate(over="ignore"):  # a draw may lie far beyond wide bounds
            action = self._centre + self._half * drawn
            action = np.minimum(np.maximum(action, self._low), self._high)
            return action.astype(self._dtype).reshape(-1, *self._shape)


def flags_of(mask: NDArray[np.bool_] | None, shape: tuple[int, int]) -> Any:
    """Returns a C pointer to a mask, NULL for None. Raises ValueError if the mask has another shape."""
    if mask is None:
        return NULL
    if mask.shape != shape:
        raise ValueError(f"mask: expected shape {shape}, got {mask.shape}")
    return ffi.from_buffer(FLAGS, np.ascontiguousarray(mask, np.bool_))
