"""Checks of arguments; each error names the argument, what was expected and what came, on one line."""

import os
import time
from collections.abc import Iterable, Mapping, Set
from difflib import SequenceMatcher, get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_finite(label: str, values: NDArray[Any]) -> None:
    """Raises ValueError, naming the first such value: one is NaN or infinite."""
    finite = np.isfinite(values)
    if not finite.all():
        raise ValueError(f"{label}: expected finite numbers, got {values[~finite].flat[0]} in {brief(values.tolist())}")


def names_error(label: str, expected: Any, got: Any) -> ValueError:
    names = list(got) if isinstance(got, (Mapping, Set)) else got
    return ValueError(f"{label}: expected the fields {sorted(expected)}, got {brief(names)}")


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the known one most like it; empty without one.

    A dotted name may be a misspelt one of its section, or one of another section.
    """

    def parts(dotted: str) -> tuple[str, str]:
        section, _, last = dotted.lstrip("-").rpartition(".")
        return section, last

    section, last = parts(str(name))
    names = [other for other in known if not section or section == parts(other)[0] or last == parts(other)[1]]
    best = get_close_matches(last, [parts(other)[1] for other in names], n=1)
    alike = [other for other in names if parts(other)[1] in best]
    nearest = max(alike, key=lambda other: SequenceMatcher(None, other, str(name)).ratio(), default=None)
    return f"; did you mean {nearest}?" if nearest else ""


def is_number(value: object) -> bool:
    """Whether the value is a real number of Python or NumPy, but not a bool."""
    return isinstance(value, Real) and not isinstance(value, bool)


def check_whole(label: str, value: object, low: int = 1, high: int | None = None) -> None:
    """Raises ValueError unless the value is an integer of Python or NumPy, but not a bool, from `low` to `high`."""
    right = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not right or value < low or (high is not None and value > high):  # type: ignore[operator]
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise ValueError(f"{label}: expected an integer {bounds}, got {brief(value)}")


def check_timeout(timeout: object, or_none: bool = True) -> None:
    """Raises ValueError unless it is a number of seconds of at least 0, or None if that is one."""
    if isinstance(timeout, float) and timeout >= 0.0:
        return  # by far the quickest check, for waits in a loop
    if not (or_none and timeout is None) and not (is_number(timeout) and timeout >= 0):  # type: ignore[operator]
        raise ValueError(f"timeout: expected seconds of at least 0{' or None' * or_none}, got {brief(timeout)}")


def deadline_of(timeout: float | None) -> float | None:
    """The time of time.monotonic() at which the timeout is over. Raises ValueError: see `check_timeout`."""
    if timeout is None:
        return None
    check_timeout(timeout)
    return time.monotonic() + timeout


def state_array(state: Any, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """The array `name` of a state. Raises TypeError: the state is not a dict. ValueError: see the message."""
    if not isinstance(state, Mapping):
        raise TypeError(f"state: expected a dict of arrays, got {brief(state)}")
    part = state.get(name)
    if not isinstance(part, np.ndarray) or part.shape != shape or part.dtype != dtype:
        array = np.asarray(part)
        got = "nothing" if part is None else f"{type(part).__name__} of {array.dtype} {array.shape}"
        raise ValueError(f"state: expected {name} as {np.dtype(dtype)} {shape}, got {got}")
    return part


def absolute(path: str | os.PathLike[str]) -> Path:
    """The path from the root. Raises ValueError: it is relative, and the working directory was deleted."""
    try:
        return Path(path).absolute()
    except FileNotFoundError:
        raise ValueError(f"{os.fspath(path)!r}: expected a working directory that exists, got a deleted one") from None


def brief(value: Any) -> str:
    """The value in an error message, on one line of at most 200 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 200 else text[:197] + "..."
