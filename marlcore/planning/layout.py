"""Lays arrays side by side in one segment, each at the start of a cache line, and a pickled object after them."""

from collections.abc import Mapping
from math import prod
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from ..errors import pass_on_from_handler
from ..memory import LINE

Shapes = Mapping[Any, tuple[str, tuple[int, ...]]]  # by array: its dtype and shape


def nbytes_of(shapes: Shapes) -> int:
    return sum(_nbytes(dtype, shape) for dtype, shape in shapes.values())


def bind(shapes: Shapes, body: NDArray[np.uint8]) -> dict[Any, NDArray[Any]]:
    """Returns the arrays in a segment's body, by name. Raises ValueError if the body is too short for them."""
    if nbytes_of(shapes) > len(body):
        raise ValueError(f"body: expected {nbytes_of(shapes)} bytes, got {len(body)}")
    arrays, offset = {}, 0
    for name, (dtype, shape) in shapes.items():
        arrays[name] = np.ndarray(shape, dtype, body, offset)
        offset += _nbytes(dtype, shape)
    return arrays


def pickled(thing: Any, refusal: str) -> NDArray[np.uint8]:
    """Pickles an object to an array of uint8. If that fails, raises TypeError(refusal.format(reason))."""
    try:
        return np.frombuffer(cloudpickle.dumps(thing), np.uint8)
    except Exception as error:  # a class's own pickling may raise anything
        pass_on_from_handler(error)
        raise TypeError(refusal.format(f"{type(error).__name__}: {error}")) from error


def _nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    return -(-np.dtype(dtype).itemsize * prod(shape) // LINE) * LINE
