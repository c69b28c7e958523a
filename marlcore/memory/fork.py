"""What a forked child must not go on using: it is told, before any other code runs in the child."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol

__all__ = ["Forkable", "invalidate_after_fork"]


class Forkable(Protocol):
    """Something that a forked child must not go on using."""

    def forked(self) -> None:
        """Called in the child: give back descriptors, refuse further use."""


_forkable: weakref.WeakSet[Any] = weakref.WeakSet()


def invalidate_after_fork(thing: Forkable) -> None:
    """Has `thing.forked()` called in every child forked while it lives."""
    _forkable.add(thing)


def _after_fork() -> None:
    for thing in list(_forkable):
        thing.forked()


os.register_at_fork(after_in_child=_after_fork)
