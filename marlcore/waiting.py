"""Sleeping until another process has made a condition true, in slices: signals, closing and deaths are seen."""

from __future__ import annotations

import time
from collections.abc import Callable

from ._native import Event

__all__ = ["WAIT_SLICE_S", "check_interruption", "interrupt_waits_with", "sleep_until"]

WAIT_SLICE_S = 0.1

Check = Callable[[], None]

_interruption: Check | None = None


def interrupt_waits_with(check: Check | None) -> Check | None:
    """Has every wait of this process call `check` before each slice of its sleep; what it raises ends the wait.

    For processes that somebody supervises: `check` raises ClosedError once they are to stop. None removes it.

    Returns: the check that was set before.
    """
    global _interruption
    before, _interruption = _interruption, check
    return before


def check_interruption() -> None:
    """For waits of another kind, before each slice: raises what the check of `interrupt_waits_with` raises."""
    if _interruption is not None:
        _interruption()


def sleep_until(ready: Callable[[], int], event: Event, deadline: float | None, check_open: Check) -> bool:
    """Whether `ready()` before the deadline of time.monotonic(); None waits for ever.

    Raises: what `check_open`, or the check of `interrupt_waits_with`, raises.
    """
    while True:
        check_open()
        seen = event.prepare()
        if ready():
            return True
        check_interruption()
        left = WAIT_SLICE_S if deadline is None else min(deadline - time.monotonic(), WAIT_SLICE_S)
        if not left > 0:
            return False
        event.wait(seen, left)
