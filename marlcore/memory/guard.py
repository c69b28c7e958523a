"""Guards objects that serve one thread of one process: against a second thread, and against use in a forked child."""

import os
import time
import weakref
from collections.abc import Callable
from functools import wraps
from threading import get_ident
from typing import Any, TypeAlias, TypeVar, cast

from ..errors import StaleHandle, UsedByTwoThreads
from .files import File
from .native import lib

_PAUSE_S = 1e-4

F = TypeVar("F", bound=Callable[..., Any])
Inside: TypeAlias = dict[int, Any]  # the threads in guarded methods, each with what its call's end lets go
_FORKED = 0  # no thread's id: the key in `inside` of the function that makes an object usable after a fork
_forkable: weakref.WeakSet[Any] = weakref.WeakSet()


def one_thread(method: F) -> F:
    """Makes a method refuse a second thread, or a signal handler, while another call is running.

    The object has a dict `_inside`, whose keys are the ids of the threads in such a method: at most one thread, and for
    a moment each thread that is being refused. The guard never waits. Each change of the dict is one instruction, and
    CPython handles no signal between that instruction and the `try`, so an exception at any moment leaves no thread
    marked as inside. `Writer.add` inlines this code to save a call. Raises UsedByTwoThreads. In a forked child, the
    first call runs the function that `at_first_use` got.
    """

    @wraps(method)
    def guarded(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        inside, me = self._inside, get_ident()
        if inside:
            let_in(self)
        inside[me] = None
        try:
            if len(inside) > 1:
                let_in(self)
            return method(self, *args, **kwargs)
        finally:
            del inside[me]

    return cast(F, guarded)


def close_when_alone(claim: File, inside: Inside) -> None:
    """Waits until no other thread is in a guarded method, then closes the claim that these methods need.

    In a signal handler that interrupts such a method, the claim closes when the method ends, however it does.
    """
    me = get_ident()
    while claim.fd >= 0 and any(thread not in (me, _FORKED) for thread in [*inside]):  # in a forked child it is closed
        time.sleep(_PAUSE_S)
    if me not in inside:
        claim.close()
    elif inside[me] is None:  # else it was closed before in this call
        inside[me] = claim.closer()


def let_in(used: Any) -> None:
    """Makes an object usable after a fork. Raises UsedByTwoThreads if another thread is inside it."""
    if (attach := used._inside.get(_FORKED)) is not None:
        attach()
        del used._inside[_FORKED]
        return
    raise UsedByTwoThreads(
        f"{type(used).__name__}: expected one thread at a time, got a call during another call; give each thread "
        "an object of its own, or hold a lock around the calls"
    )


def at_first_use(inside: Inside, attach: Callable[[], None]) -> None:
    """For an object's `forked()`: makes guarded calls run `attach` first, until it succeeds once."""
    inside[_FORKED] = _refuse_torn if inside.keys() - {_FORKED} else attach


def _refuse_torn() -> None:
    raise StaleHandle("a thread was inside this object when the process forked; make another one in the child")


def child_number() -> int:
    """Returns, in a forked child, a number that none of its siblings has: the number of forks up to its own."""
    return int(lib.mc_forks())


def invalidate_after_fork(thing: Any) -> None:
    """Registers an object: each child forked while the object lives first calls the object's `forked()`."""
    _forkable.add(thing)


def _after_fork() -> None:
    for thing in list(_forkable):
        thing.forked()


# C functions, so that there is no instruction at which a handler could raise instead: see forks.c
os.register_at_fork(before=lib.mc_fork_begin, after_in_parent=lib.mc_fork_end, after_in_child=lib.mc_fork_child)
os.register_at_fork(after_in_child=_after_fork)
os.register_at_fork(after_in_child=lib.mc_fork_end)
