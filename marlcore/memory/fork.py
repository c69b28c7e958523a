"""Invalidation after a fork: objects that a forked child must not use learn of it before other code runs there."""

from __future__ import annotations

import os
import weakref
from typing import Any, Protocol


class Forkable(Protocol):
    """An object that a forked child must not continue to use."""

    def forked(self) -> None:
        """Called in the child: close descriptors, refuse further use."""


_forkable: weakref.WeakSet[Any] = weakref.WeakSet()


def invalidate_after_fork(thing: Forkable) -> None:
    """Registers `thing`: each child forked during its life calls `thing.forked()`."""
    _forkable.add(thing)


def _after_fork() -> None:
    for thing in list(_forkable):
        thing.forked()


os.register_at_fork(after_in_child=_after_fork)
