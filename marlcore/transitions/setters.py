"""Setters check a field's value and write it into memory, with the cheapest code for the field's kind."""

from collections.abc import Callable, Mapping
from math import isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_finite, names_error
from ..observations import ALONE, path_to
from ..spec import ACTION, Field, Fields, TransitionSpec, as_field
from .layout import Place, RecordLayout

Setter = Callable[[Any], None]

MEMORYVIEW_ITEMS = "bBhHiIlLqQfd"  # the dtypes of kinds i, u and f whose items a memoryview can set

_INSTEAD = {  # of what other libraries' buffers take
    "next_obs": "next_obs is read from the next row: give final_obs where an episode ends",
    "done": "give terminated or truncated instead of done",
}


class FieldSetters:
    """Setters of all fields but reward, terminated and truncated, made by `put_of(place, label, is_boundary_row)`."""

    def __init__(
        self, spec: TransitionSpec, layout: RecordLayout, put_of: Callable[[Place, str, bool], Setter]
    ) -> None:
        def in_role(role: str, final: bool = False) -> Callable[[str, str], Setter]:
            places = {place.name: place for place in layout.of_role(role)}
            return lambda path, label: put_of(places[path or ALONE], label, final)

        self.obs = _setter_of(in_role("obs"), spec.obs, "", "obs")
        self.final_obs = _setter_of(in_role("obs", final=True), spec.obs, "", "final_obs")
        self.action = _setter_of(in_role("action"), spec.action, ACTION, "action")
        self.extras = {name: _setter_of(in_role("extra"), form, name, name) for name, form in spec.extras.items()}
        if spec.next_obs:
            self.extras["next_obs"] = _setter_of(in_role("next_obs"), spec.obs, "", "next_obs")


def _setter_of(make: Callable[[str, str], Setter], form: Fields, path: str, label: str) -> Setter:
    """Returns a setter of a Field's value, or of a dict of values, made by `make(path, label)` for each Field."""
    if isinstance(form, Field):
        return make(path, label)
    puts = {name: _setter_of(make, part, path_to(path, name), f"{label}[{name!r}]") for name, part in form.items()}

    def put(value: Any) -> None:
        if not isinstance(value, Mapping):
            raise names_error(label, puts.keys(), value)
        put_all(label, puts, value)

    return put


def put_all(label: str, puts: Mapping[str, Setter], values: Mapping[str, Any]) -> None:
    """Sets each named value by its setter. Raises ValueError if a name is missing or unknown."""
    if values.keys() != puts.keys():
        unknown = [_INSTEAD[name] for name in values if name in _INSTEAD.keys() - puts.keys()]
        raise ValueError("; ".join([str(names_error(label, puts.keys(), values)), *unknown]))
    for name, put in puts.items():
        put(values[name])


class RewardVector:
    """Stages a vector reward; it is used like the memoryview that takes a single number."""

    def __init__(self, field: Field, view: NDArray[np.float32]) -> None:
        self._field, self._view = field, view

    def __setitem__(self, index: int, reward: Any) -> None:
        values = as_field("reward", self._field, reward)
        check_finite("reward", values)
        self._view[...] = values

    def __getitem__(self, index: int) -> float:
        return float(self._view[index])


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
        except (TypeError, ValueError, BufferError):
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
