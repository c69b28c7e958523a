"""What belongs to one thread at a time says so to a second one, instead of mixing what both stage."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any, Protocol, TypeVar, cast

from ..errors import UsedByTwoThreads

__all__ = ["Guarded", "one_thread", "refuse_second"]

F = TypeVar("F", bound=Callable[..., Any])


class Guarded(Protocol):
    """An object with methods that one thread at a time may be inside.

    Attributes:
        _inside: the threads inside, by number: at most one, and for a moment those that are refused.
    """

    _inside: dict[int, None]


def one_thread(method: F) -> F:
    """Has a method refuse a second thread, and a handler of a signal, while a first one is inside.

    It never waits. What a thread does to the dict is one instruction each, between which and the `try` CPython handles
    no signal: an exception that comes at any time leaves nobody inside. `Writer.add` spells it out, to save a call.

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
