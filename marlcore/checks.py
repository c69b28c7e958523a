"""Checks of arguments. An error is one line: "argument: expected X, got Y"."""

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from difflib import SequenceMatcher, get_close_matches
from numbers import Real
from pathlib import Path
from reprlib import Repr
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

_LONGEST = 200  # characters of a value in a message
_ALIKE = 0.7  # of SequenceMatcher.ratio: "gama" is like "gamma", but "nonsense" is not like "nodes" (0.62)
_REPR = Repr()  # also for values whose own repr raises, such as JAX arrays that were deleted
_REPR.maxother = 4 * _LONGEST
_BRACKETS: dict[Any, Any] = {dict.__repr__: "{}", list.__repr__: "[]", tuple.__repr__: "()"}


def are_finite(values: NDArray[Any]) -> bool:
    """Whether no value is NaN or infinite; for few values, three times as fast as `np.isfinite(values).all()`."""
    return 0 not in np.isfinite(values).tobytes("A")


def check_finite(label: str, values: NDArray[Any]) -> None:
    """Raises ValueError if a value is NaN or infinite; the message has the first such value."""
    if not are_finite(values):
        finite = np.isfinite(values)
        raise ValueError(f"{label}: expected finite numbers, got {values[~finite].flat[0]} in {brief(values.tolist())}")


def names_error(label: str, expected: Any, got: Any) -> ValueError:
    names = list(got) if isinstance(got, (Mapping, Set)) else got
    return ValueError(f"{label}: expected the fields {sorted(expected)}, got {brief(names)}")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Returns the end of a message about an unknown name, with the most similar known name; "" if none is similar.

    A dotted name is compared only with known names of the same section or with the same last part.
    """
    section, _, last = str(name)[:_LONGEST].lstrip("-").rpartition(".")
    parts = {other: other.lstrip("-").rpartition(".") for other in known}
    near = {other: part[2] for other, part in parts.items() if section in ("", part[0]) or last == part[2]}
    best = get_close_matches(last, near.values(), n=1, cutoff=_ALIKE)
    alike = [other for other in near if near[other] in best]
    nearest = max(alike, key=lambda other: SequenceMatcher(None, other, str(name)).ratio(), default=None)
    return f"; did you mean {nearest}?" if nearest else ""


def is_number(value: object) -> bool:
    """Whether the value is a real number of Python or NumPy, but not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is an integer of Python or NumPy, but not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def check_whole(label: str, value: object, low: int = 1, high: int | None = None) -> None:
    """Raises ValueError unless the value is an integer from `low` to `high`; see `is_whole`."""
    if not is_whole(value) or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{label}: expected an integer {bounds}, got {brief(value)}")


def check_timeout(timeout: object, or_none: bool = True) -> None:
    """Raises ValueError unless the timeout is a number of seconds, at least 0, or, if `or_none`, None."""
    if isinstance(timeout, float) and timeout >= 0.0:
        return  # by far the quickest check, for waits in a loop
    if not (or_none and timeout is None) and not (is_number(timeout) and timeout >= 0):  # type: ignore[operator]
        raise ValueError(f"timeout: expected seconds of at least 0{' or None' * or_none}, got {brief(timeout)}")


def deadline_of(timeout: float | None) -> float | None:
    """Returns the time.monotonic() at which a timeout ends; None if `timeout` is None. Raises as `check_timeout`."""
    if timeout is None:
        return None
    check_timeout(timeout)
    return time.monotonic() + timeout


def state_array(state: Any, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Returns a state's array `name`. Raises TypeError unless the state is a dict, ValueError if the array is wrong."""
    check_type("state", state, Mapping, expected="a dict of arrays")
    part = state.get(name)
    if not isinstance(part, np.ndarray) or part.shape != shape or part.dtype != dtype:
        array = np.asarray(part)
        got = "nothing" if part is None else f"{type(part).__name__} of {array.dtype} {array.shape}"
        raise ValueError(f"state: expected {name} as {np.dtype(dtype)} {shape}, got {got}")
    return part


def check_type(label: str, value: object, kind: Any, *, or_none: bool = False, expected: str = "") -> None:
    """Raises TypeError unless the value is a `kind` (in the message: `expected`) or, if `or_none`, None."""
    if not isinstance(value, kind) and not (or_none and value is None):
        expected = expected or f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"
        raise TypeError(f"{label}: expected {expected}{' or None' * or_none}, got {brief(value)}")


def check_kinds(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> None:
    """Raises ValueError if a value, such as one from a file, is not of the type that `kinds` has for its name."""
    for name, kind in kinds.items():
        if name in values and not isinstance(values[name], kind):
            raise ValueError(f"{name}: expected {getattr(kind, '__name__', kind)}, got {brief(values[name])}")


def as_path(label: str, path: Any) -> Path:
    """Returns a Path. Raises ValueError for other types, for null characters, and if it is too long for the kernel."""
    if not isinstance(path, (str, os.PathLike)) or "\0" in str(path) or len(str(path)) > 4096:
        raise ValueError(f"{label}: expected a path, got {brief(path)}")
    return Path(path)


def absolute(path: str | os.PathLike[str], label: str = "run_dir") -> Path:
    """Returns the absolute path. Raises ValueError as `as_path` does, or if the working directory was deleted."""
    try:
        return as_path(label, path).absolute()
    except FileNotFoundError:
        raise ValueError(f"{os.fspath(path)!r}: expected a working directory that exists, got a deleted one") from None


def brief(value: Any) -> str:
    """Returns a value of any size for an error message, in one line of at most 200 printable characters."""
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > 4 * _LONGEST:  # a value may contain itself, or so many values that writing all takes hours
            break
    return short(" ".join(text.split()))


def short(text: object) -> str:
    """Returns a text, such as a name, for an error message, in at most 200 printable characters."""
    shown = printable(str(text)[: 2 * _LONGEST])
    return shown if len(shown) <= _LONGEST else shown[: _LONGEST - 3] + "..."


def printable(text: str, but: str = "") -> str:
    """Replaces control characters and direction marks by escapes, except those in `but`.

    Names of agents, files and metrics may hold such characters, which on a terminal move the cursor or hide text.
    """
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in but else ascii(char)[1:-1] for char in text)


def _pieces(value: Any, depth: int = 20) -> Iterator[str]:
    form: Any = type(value).__repr__
    if form in (str.__repr__, bytes.__repr__):
        yield repr(value[:_LONGEST])
    elif form is int.__repr__ and value.bit_length() > 4 * _LONGEST:
        yield f"an integer of {value.bit_length()} bits"
    elif form in _BRACKETS and depth:
        begin, end = _BRACKETS[form]
        yield begin
        for number, part in enumerate(value):
            yield ", " if number else ""
            yield from _pieces(part, depth - 1)
            if form is dict.__repr__:
                yield ": "
                yield from _pieces(value[part], depth - 1)
        yield f",{end}" if form is tuple.__repr__ and len(value) == 1 else end
    else:
        yield "..." if form in _BRACKETS else _REPR.repr_instance(value, 0)
