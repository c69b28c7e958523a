"""Guards objects that serve one thread of one process: a second thread and a forked child get an error."""

import os
import time
import weakref
from collections.abc import Callable, Collection
from functools import wraps
from threading import get_ident
from typing import Any, TypeVar, cast

from ..errors import UsedByTwoThreads
from .files import File

_PAUSE_S = 1e-4

F = TypeVar("F", bound=Callable[..., Any])
_forkable: weakref.WeakSet[Any] = weakref.WeakSet()


def one_thread(method: F) -> F:
    """Makes a method refuse a second thread, or a signal handler, while another call is running.

    The object has a dict `_inside`, whose keys are the ids of the threads in such a method: at most one thread, and for
    a moment each thread that is being refused. The guard never waits. Each change of the dict is one instruction, and
    CPython handles no signal between that instruction and the `try`, so an exception at any moment leaves no thread
    marked as inside. `Writer.add` inlines this code to save a call. Raises UsedByTwoThreads.
    """

    @wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
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


def close_when_alone(claim: File, inside: Collection[int]) -> None:
    """Waits until no other thread is in a guarded method, then closes the claim that these methods need."""
    me = get_ident()
    while claim.fd >= 0 and any(thread != me for thread in [*inside]):  # in a forked child it is closed
        time.sleep(_PAUSE_S)
    claim.close()


def refuse_second(used: object) -> None:
    raise UsedByTwoThreads(
        f"{type(used).__name__}: expected one thread at a time, got a call while another one was inside; give each "
        "thread its own, or hold a lock around the calls"
    )


def invalidate_after_fork(thing: Any) -> None:
    """Registers an object: each child forked while the object lives first calls the object's `forked()`."""
    _forkable.add(thing)


def _after_fork() -> None:
    for thing in list(_forkable):
        thing.forked()


os.register_at_fork(after_in_child=_after_fork)
