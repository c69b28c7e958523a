"""Checking values against Fields, and putting them into memory as cheaply as their kind allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .spec import Field

__all__ = ["Put", "as_field", "came", "names_error", "rows_of", "setter"]

Put = Callable[[Any], None]

_MEMORYVIEW_ITEMS = "bBhHiIlLqQfd"  # of the kinds i, u and f, those whose items a memoryview can set


def setter(label: str, field: Field, view: NDArray[Any]) -> Put:
    """A call that checks one value and writes it into `view`, [1, *shape] of the field's dtype."""
    if not field.shape and view.dtype.char in _MEMORYVIEW_ITEMS:
        return _scalar_put(label, field, view)
    if len(field.shape) == 1 and view.dtype.kind in "iuf":
        return _vector_put(label, field, view[0])
    return _array_put(label, field, view[0, ...])


def as_field(label: str, field: Field, value: Any) -> NDArray[Any]:
    """`value` as an array of the field's shape and dtype.

    Raises: ValueError, TypeError: naming the field, what was expected and what came.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(f"{label}: expected {field.describe()}, got {came(value)} ({came(error)})") from None
    dtype = field.numpy
    if array.shape != field.shape:
        raise ValueError(f"{label}: expected {field.describe()}, got shape {array.shape}")
    if array.dtype == dtype:
        return array
    integers = array.dtype.kind in "iu" and dtype.kind in "iu"
    if integers:
        _check_range(label, field, array)
    if integers or np.can_cast(array.dtype, dtype, "same_kind"):
        return array.astype(dtype)
    raise TypeError(f"{label}: expected {field.describe()}, got dtype {array.dtype}")


def _check_range(label: str, field: Field, array: NDArray[Any]) -> None:
    limits = np.iinfo(field.dtype)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        raise ValueError(f"{label}: expected values in {field.dtype}'s range, got {array.min()} to {array.max()}")


def _scalar_put(label: str, field: Field, view: NDArray[Any]) -> Put:
    """A memoryview checks the type and range of a Python or NumPy number by itself."""
    memory: Any = view.data

    def put(value: Any) -> None:
        try:
            memory[0] = value
        except (TypeError, ValueError):
            memory[0] = as_field(label, field, value)[()]

    return put


def _vector_put(label: str, field: Field, view: NDArray[Any]) -> Put:
    """Assigning an array to a memoryview checks its shape and dtype on the way."""
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


def rows_of(label: str, field: Field, value: Any, rows: int) -> NDArray[Any]:
    """`value` as an array [rows, *shape] of the field's dtype; as it is when it is one."""
    shape = (rows, *field.shape)
    if value.__class__ is np.ndarray and value.shape == shape and value.dtype == field.numpy:
        found: NDArray[Any] = value
        return found
    return as_field(label, Field(shape, field.dtype), value)


def names_error(label: str, expected: Any, got: Any) -> ValueError:
    names = list(got) if isinstance(got, (Mapping, Set)) else got
    return ValueError(f"{label}: expected the fields {sorted(expected)}, got {came(names)}")


def came(value: Any) -> str:
    """What came, on one line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else text[:197] + "..."
