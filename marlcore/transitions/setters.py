"""Setters check a field's value and write it into memory, with the cheapest code for the field's kind."""

from collections.abc import Callable, Mapping
from math import isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import names_error
from ..spec import Field, TransitionSpec, as_field
from .layout import Place, RecordLayout

Setter = Callable[[Any], None]

MEMORYVIEW_ITEMS = "bBhHiIlLqQfd"  # the dtypes of kinds i, u and f whose items a memoryview can set


class FieldSetters:
    """Setters of all fields but reward, terminated and truncated, made by `put_of(place, label, is_boundary_row)`."""

    def __init__(
        self, spec: TransitionSpec, layout: RecordLayout, put_of: Callable[[Place, str, bool], Setter]
    ) -> None:
        def observation(role: str, label: str, final: bool = False) -> Setter:
            places = layout.of_role(role)
            if isinstance(spec.obs, Field):
                return put_of(places[0], label, final)
            puts = {place.name: put_of(place, f"{label}[{place.name!r}]", final) for place in places}

            def put(value: Any) -> None:
                if not isinstance(value, Mapping):
                    raise names_error(label, puts.keys(), value)
                put_all(label, puts, value)

            return put

        self.obs = observation("obs", "obs")
        self.final_obs = observation("obs", "final_obs", final=True)
        self.action = put_of(layout.of_role("action")[0], "action", False)
        self.extras = {place.name: put_of(place, place.name, False) for place in layout.of_role("extra")}
        if spec.next_obs:
            self.extras["next_obs"] = observation("next_obs", "next_obs")


def put_all(label: str, puts: Mapping[str, Setter], values: Mapping[str, Any]) -> None:
    """Sets each named value by its setter. Raises ValueError if a name is missing or unknown."""
    if values.keys() != puts.keys():
        raise names_error(label, puts.keys(), values)
    for name, put in puts.items():
        put(values[name])


def setter(label: str, field: Field, view: NDArray[Any]) -> Setter:
    """Returns a setter of one value in `view`, [1, *shape] of the field's dtype."""
    if not field.shape and view.dtype.char in MEMORYVIEW_ITEMS:
        return _scalar_put(label, field, view)
    if len(field.shape) == 1 and view.dtype.kind in "iuf":
        return _vector_put(label, field, view[0])
    return _array_put(label, field, view[0, ...])


def _scalar_put(label: str, field: Field, view: NDArray[Any]) -> Setter:
    """Returns a setter that writes through a memoryview, and checks the type and range of a Python or NumPy number."""
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


def _vector_put(label: str, field: Field, view: NDArray[Any]) -> Setter:
    """Returns a setter that writes through a memoryview, and checks an array's shape and dtype."""
    memory: Any = view.data

    def put(value: Any) -> None:
        try:
            memory[:] = value
        except (TypeError, ValueError):
            view[:] = as_field(label, field, value)

    return put


def _array_put(label: str, field: Field, view: NDArray[Any]) -> Setter:
    dtype, shape = field.numpy, field.shape

    def put(value: Any) -> None:
        if value.__class__ is np.ndarray and value.dtype == dtype and value.shape == shape:
            view[...] = value
        else:
            view[...] = as_field(label, field, value)

    return put
