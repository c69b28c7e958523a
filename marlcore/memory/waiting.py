"""Sleeping until another process has made a condition true, in slices: signals, closing and deaths are seen."""

from __future__ import annotations

import time
from collections.abc import Callable

from .native import Event

__all__ = ["WAIT_SLICE_S", "Check", "check_interruption", "interrupt_waits_with", "sleep_until"]

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


def sleep_until(missing: Callable[[], int], event: Event, deadline: float | None, check_open: Check) -> bool:
    """Whether nothing is missing before the deadline of time.monotonic(); None waits for ever.

    The event's notifiers wake this process once, when all that was missing has come, and not at every row.

    Args:
        missing: how much has yet to come, in the unit in which notifiers count, 0 when it is all there; 1 where
            that is not known.

    Raises: what `check_open`, or the check of `interrupt_waits_with`, raises.
    """
    while True:
        check_open()
        wanted = missing()
        while wanted:
            seen = event.prepare(wanted)
            left = missing()
            if left >= wanted:
                break
            # What came between the two looks may not be taken off: announce less, by as much as may come again.
            wanted = max(1, 2 * left - wanted) if left else 0
        if not wanted:
            return True
        check_interruption()
        seconds = WAIT_SLICE_S if deadline is None else min(deadline - time.monotonic(), WAIT_SLICE_S)
        if not seconds > 0:
            return False
        event.wait(seen, seconds)
