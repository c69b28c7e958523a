"""Exceptions of a program's signal handlers pass through code that expects any exception of the user's classes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from marlcore.errors import suppress_failed_calls
from marlcore.planning.tabulate import stays_equal
from marlcore.processes import check_picklable


class Limit:
    """A program's own time limit, which comes while an object of this class is pickled."""

    def __call__(self, signum: int, frame: object) -> None:
        raise TimeoutError("the program's own limit")

    def __reduce__(self) -> Any:
        signal.raise_signal(signal.SIGALRM)
        raise AssertionError("the handler raises")


@pytest.fixture(params=["method", "object"])
def limit(request: pytest.FixtureRequest) -> Iterator[Limit]:
    limit = Limit()
    before = signal.signal(signal.SIGALRM, limit.__call__ if request.param == "method" else limit)
    yield limit
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("pickle", [stays_equal, lambda thing: check_picklable(thing=thing)])
def test_a_signal_handlers_exception_is_no_failure_of_pickling(limit: Limit, pickle: Callable[[Any], object]) -> None:
    with pytest.raises(TimeoutError, match="own limit"):
        pickle(limit)


def test_a_signal_handlers_exception_is_no_failed_call(limit: Limit) -> None:
    with pytest.raises(TimeoutError), suppress_failed_calls():
        signal.raise_signal(signal.SIGALRM)
    with suppress_failed_calls():
        os.stat("/nowhere/at/all")
