"""A guard for objects that serve one thread at a time: a second thread gets an error, never mixed data."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any, Protocol, TypeVar, cast

from ..errors import UsedByTwoThreads

F = TypeVar("F", bound=Callable[..., Any])


class Guarded(Protocol):
    """An object with methods that only one thread at a time may be inside.

    Attributes:
        _inside: numbers of the threads inside: at most one, and briefly those that are being refused.
    """

    _inside: dict[int, None]


def one_thread(method: F) -> F:
    """Makes a method refuse a second thread, or a signal handler, while another call is inside.

    It never waits. Each change of the dict is one instruction, and CPython handles no signal between it and the `try`:
    an exception at any moment leaves no thread marked as inside. `Writer.add` inlines this code to save a call.

    Raises: UsedByTwoThreads.
    """

    @wraps(method)
    def guarded(self: Guarded, *args: Any, **kwargs: Any) -> Any:
        inside, me = self._inside, get_ident()
        if inside:
            refuse_second(self)
        inside[me] = None
        try:
            if len(inside) > 1:
                refuse_second(self)
            return method(self, *args, **kwargs)
        finally:
            del inside[me]

    return cast(F, guarded)


def refuse_second(used: object) -> None:
    """Raises UsedByTwoThreads."""
    raise UsedByTwoThreads(
        f"{type(used).__name__}: expected one thread at a time, got a call while another one was inside; give each "
        "thread its own, or hold a lock around the calls"
    )
