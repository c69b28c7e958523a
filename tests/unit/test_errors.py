"""Exceptions of a program's signal handlers pass through code that expects any exception of the user's classes."""

from __future__ import annotations

import ast
import inspect
import os
import signal
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import marlcore
from marlcore import errors
from marlcore.errors import MarlcoreError, suppress_failed_calls
from marlcore.planning import batches, exploration, tabulate
from marlcore.processes import check_picklable


def is_marlcores(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, MarlcoreError)


class Limit:
    """A program's own time limit, which expires while an object of this class is pickled."""

    def __call__(self, signum: int, frame: object) -> None:
        raise TimeoutError("the program's own limit")

    def __reduce__(self) -> Any:
        signal.raise_signal(signal.SIGALRM)
        raise AssertionError("the handler raises")


@pytest.fixture(params=["method", "object", "partial"])
def limit(request: pytest.FixtureRequest) -> Iterator[Limit]:
    limit = Limit()
    kinds = {"method": limit.__call__, "object": limit, "partial": partial(partial(Limit.__call__, limit))}
    before = signal.signal(signal.SIGALRM, kinds[request.param])
    yield limit
    signal.signal(signal.SIGALRM, before)


def expanded(thing: Limit) -> None:
    exploration.expand(lambda state, profile: thing.__reduce__(), [(0,)], [0])


def called(thing: Limit) -> None:
    tabulate.answers("callback", [0], (thing.__reduce__() for _ in range(1)))


@pytest.mark.parametrize("call", [batches.stays_equal, lambda thing: check_picklable(thing=thing), expanded, called])
def test_a_signal_handlers_exception_is_no_failure_of_the_users(limit: Limit, call: Callable[[Any], object]) -> None:
    """It may come while an object is pickled, or in a world model or a callback."""
    with pytest.raises(TimeoutError, match="own limit"):
        call(limit)


def test_a_signal_handlers_exception_is_no_failed_call(limit: Limit) -> None:
    with pytest.raises(TimeoutError), suppress_failed_calls():
        signal.raise_signal(signal.SIGALRM)
    with suppress_failed_calls():
        os.stat("/nowhere/at/all")


def test_a_failed_call_keeps_no_caller_alive() -> None:
    """Objects of the caller are freed at once, as a forgotten segment must be."""

    def failing() -> weakref.ref[Any]:
        held = Limit()
        with suppress_failed_calls():
            os.stat("/nowhere/at/all")
        return weakref.ref(held)

    assert failing()() is None


@pytest.mark.parametrize("kind", [kind for kind in vars(errors).values() if is_marlcores(kind)])
def test_an_errors_text_says_what_to_do(kind: type[Exception]) -> None:
    """The first paragraph says when the error is raised, the second one what to do; the reference shows both."""
    when, *more = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    assert when and more and not more[0].startswith("Attributes:")


def test_a_wait_raises_marlcores_own_error() -> None:
    """Programs may catch TimedOut or TimeoutError; a plain TimeoutError would pass those that catch TimedOut."""
    package = Path(marlcore.__file__).parent
    for path in set(package.rglob("*.py")) - {package / "errors.py"}:
        if "TimeoutError" in (code := path.read_text()):
            names = {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
            assert "TimeoutError" not in names, path
