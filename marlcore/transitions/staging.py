"""Setters that check a field's value and write it into memory, each with the cheapest code for its kind of field."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import as_field, names_error
from ..spec import Field, TransitionSpec
from .layout import Place

__all__ = ["MEMORYVIEW_ITEMS", "Put", "put_all", "put_of_observation", "setter"]

Put = Callable[[Any], None]

MEMORYVIEW_ITEMS = "bBhHiIlLqQfd"  # the dtypes of kinds i, u and f whose items a memoryview can set


def put_all(label: str, puts: Mapping[str, Put], values: Mapping[str, Any]) -> None:
    """Stages named values. Raises ValueError: a name is missing or unknown."""
    if values.keys() != puts.keys():
        raise names_error(label, puts.keys(), values)
    for name, put in puts.items():
        put(values[name])


def put_of_observation(
    label: str, spec: TransitionSpec, places: list[Place], put_of: Callable[[Place, str], Put]
) -> Put:
    """A callable that stages an observation: one value, or a dict of them; `put_of` makes that of one place."""
    if isinstance(spec.obs, Field):
        return put_of(places[0], label)
    puts = {place.name: put_of(place, f"{label}[{place.name!r}]") for place in places}

    def put(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise names_error(label, puts.keys(), value)
        put_all(label, puts, value)

    return put


def setter(label: str, field: Field, view: NDArray[Any]) -> Put:
    """A callable that checks one value and writes it into `view`, [1, *shape] of the field's dtype."""
    if not field.shape and view.dtype.char in MEMORYVIEW_ITEMS:
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

    def put_float(value: Any) -> None:
        try:  # as `put`, without a second call
            memory[0] = value
        except (TypeError, ValueError):
            memory[0] = as_field(label, field, value)[()]
        if isinf(memory[0]):
            as_field(label, field, value)  # refuses a finite number that float32 does not hold

    return put_float if view.dtype.char == "f" and label != "reward" else put  # the C core refuses such rewards


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
