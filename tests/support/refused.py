"""Refusals: tables of refused input, the whole text of an error, and what a forked child may not use.

A row of a table has a call, the error's class unless that is ValueError, and the line that it must say. Rows may have
names.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from victims import fork, reap

from marlcore import StaleHandle

Refused = tuple[Callable[[], object], type[Exception], str] | tuple[Callable[[], object], str]
Errors = type[Exception] | tuple[type[Exception], ...]


def check_refused(call: Callable[[], object], error: Errors, says: str) -> None:
    """The call raises this error, in one line that contains `says`."""
    with pytest.raises(error) as raised:
        call()
    assert says in str(raised.value) and "\n" not in str(raised.value) and len(str(raised.value)) < 5_000


def refusals(table: Mapping[str, Refused] | Iterable[Refused]) -> Callable[[pytest.Subtests], None]:
    """A test of all rows of a table, which names each that fails."""
    rows = table if isinstance(table, Mapping) else dict(enumerate(table))

    def test(subtests: pytest.Subtests) -> None:
        for case, row in rows.items():
            with subtests.test(f"{case}: {row[-1]}"):
                check_row(row)

    return test


def check_row(row: Refused) -> None:
    call, *error, says = row
    check_refused(call, *error or [ValueError], says)


def each_bad(call: Callable[..., object], expected: str, **values: Iterable[Any]) -> list[Refused]:
    """Rows of calls with one bad value of one argument each, which say "argument: expected ..., got value"."""
    return [
        (partial(call, **{name: value}), ValueError, f"{name}: expected {expected}, got {value!r}")
        for name, bad in values.items()
        for value in bad
    ]


@contextmanager
def refused(error: Errors, message: str) -> Iterator[None]:
    """The block raises this error, whose text is the message and no more."""
    with pytest.raises(error) as raised:
        yield
    assert str(raised.value) == message


def stale_in_a_fork(*calls: Callable[[], object]) -> bool:
    """Whether a forked child is refused each of the calls as StaleHandle."""

    def child() -> None:
        for call in calls:
            with pytest.raises(StaleHandle):
                call()

    return reap(fork(child)) == 0
