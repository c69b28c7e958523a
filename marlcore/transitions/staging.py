"""Setters that check a field's value and write it into memory, each with the cheapest code for its kind of field."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import as_field
from ..spec import Field

__all__ = ["Put", "setter"]

Put = Callable[[Any], None]

_MEMORYVIEW_ITEMS = "bBhHiIlLqQfd"  # the dtypes of kinds i, u and f whose items a memoryview can set


def setter(label: str, field: Field, view: NDArray[Any]) -> Put:
    """A callable that checks one value and writes it into `view`, [1, *shape] of the field's dtype."""
    if not field.shape and view.dtype.char in _MEMORYVIEW_ITEMS:
        return _scalar_put(label, field, view)
    if len(field.shape) == 1 and view.dtype.kind in "iuf":
        return _vector_put(label, field, view[0])
    return _array_put(label, field, view[0, ...])


def _scalar_put(label: str, field: Field, view: NDArray[Any]) -> Put:
    """A memoryview itself checks the type and range of a Python or NumPy number."""
    memory: Any = view.data

    def put(value: Any) -> None:
        try:
            memory[0] = value
        except (TypeError, ValueError):
            memory[0] = as_field(label, field, value)[()]

    return put


def _vector_put(label: str, field: Field, view: NDArray[Any]) -> Put:
    """Assigning an array to a memoryview also checks its shape and dtype."""
    memory: Any = view.data

    def put(value: Any) -> None:
        try:
            memory[:] = value
        except (TypeError, ValueError):
            view[:] = as_field(label, field, value)

    return put


def _array_put(label: str, field: Field, view: NDArray[Any]) -> Put:
    dtype, shape = field.numpy, field.shape

    def put(value: Any) -> None:
        if value.__class__ is np.ndarray and value.dtype == dtype and value.shape == shape:
            view[...] = value
        else:
            view[...] = as_field(label, field, value)

    return put
