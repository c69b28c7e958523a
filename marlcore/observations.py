"""Observations as one array or as several by name, and functions that treat both forms alike."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

from numpy.typing import NDArray

ALONE = "observation"  # the name of a single part; PettingZoo gives it to an observation beside its mask

Values = NDArray[Any] | dict[str, NDArray[Any]]  # the arrays of an observation's field, or of its fields by name
Pad = Literal["repeat", "zero"]  # the padding of a stack before an episode's first observation

T = TypeVar("T")


def by_name(parts: T | Mapping[str, T]) -> dict[str, T]:
    """Returns the parts by name; a single part, such as an array or a Field, gets the name ALONE."""
    return dict(parts) if isinstance(parts, Mapping) else {ALONE: parts}


def in_form(parts: Mapping[str, T], form: Any) -> T | dict[str, T]:
    """Inverts `by_name`: returns the parts by name if `form` is a dict, otherwise the part named ALONE."""
    return dict(parts) if isinstance(form, Mapping) else parts[ALONE]


def leaves(tree: Any, path: str = "") -> dict[str, Any]:
    """Returns the leaves of nested dicts by paths such as "hand.left"; a single leaf has the path `path` or ALONE.

    Raises ValueError if two leaves have one path.
    """
    if not isinstance(tree, Mapping):
        return {path or ALONE: tree}
    found: dict[str, Any] = {}
    for name, part in tree.items():
        inner = leaves(part, path_to(path, name))
        if both := found.keys() & inner.keys():
            raise ValueError(f"expected one field with the path {min(both)!r}, got two")
        found |= inner
    return found


def nested(parts: Mapping[str, Any], form: Any, path: str = "") -> Any:
    """Inverts `leaves`: returns nested dicts like `form` with `parts` as leaves; leaves out those not in `parts`."""
    if not isinstance(form, Mapping):
        return parts[path or ALONE]
    paths = {name: path_to(path, name) for name in form}
    return {
        name: nested(parts, inner, paths[name])
        for name, inner in form.items()
        if isinstance(inner, Mapping) or paths[name] in parts
    }


def path_to(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def part_name(keys: tuple[Any, ...]) -> str:
    """Returns an identifier that names the part under these keys of Dicts and Tuples; ALONE without keys."""
    if not keys:
        return ALONE
    name = re.sub(r"\W", "_", "__".join(map(str, keys)))
    return name if name.isidentifier() else f"part_{name}"


def each(function: Callable[..., Any], values: Any, *others: Any) -> Any:
    """Applies `function` to each part of the values and the same part of `others`; returns results in the same form."""
    if isinstance(values, Mapping):
        return {name: each(function, value, *(other[name] for other in others)) for name, value in values.items()}
    return function(values, *others)


def rows_at(values: Any, index: Any) -> Any:
    return {name: rows_at(rows, index) for name, rows in values.items()} if isinstance(values, dict) else values[index]


def put_rows(values: Any, index: Any, new: Any) -> None:
    if isinstance(values, dict):
        for name, rows in values.items():
            put_rows(rows, index, new[name])
    else:
        values[index] = new
