"""Sleeps until another process makes a condition true, in slices, so that the sleeper notices signals and deaths."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .native import Event

log = logging.getLogger(__name__)

WAIT_SLICE_S = 0.1
ALONE_S = 30.0  # seconds between checks, in a long wait, whether the other side lives

Check = Callable[[], None]

_interruption: Check | None = None
_own = threading.local()  # its `check` applies only to the waits of one thread


def interrupt_waits_with(check: Check | None) -> Check | None:
    """Makes every wait of this process call `check` before each slice of sleep; returns the previous check.

    The wait ends with the exception that `check` raises, such as ClosedError in a supervised process that must stop.
    None removes the check.
    """
    global _interruption
    before, _interruption = _interruption, check
    return before


@contextmanager
def interrupting_own_waits(check: Check) -> Iterator[None]:
    """Makes waits of this thread call `check` too, within a `with` block, except waits inside `check`."""
    before: Check | None = getattr(_own, "check", None)

    def checked() -> None:
        _own.check = before
        try:
            check()
        finally:
            _own.check = checked

    _own.check = checked
    try:
        yield
    finally:
        _own.check = before


def check_interruption() -> None:
    """Runs the checks of this process and thread, which may raise; waits other than `sleep_until` call it, too."""
    if _interruption is not None:
        _interruption()
    own: Check | None = getattr(_own, "check", None)
    if own is not None:
        own()


def sleep_until(
    missing: Callable[[], int], event: Event, deadline: float | None, check_open: Check,
    alone: Callable[[], str] | None = None,
) -> bool:  # fmt: skip
    """Waits until nothing is missing; returns False at `deadline`, a time of time.monotonic() (None: no deadline).

    `missing` returns the amount still to come, in the units of the event's notifiers, or 1 if the amount is unknown.
    Notifiers wake this process once, when all has come. A long wait logs one warning, with the text that `alone`
    returns if no living process can end the wait. Raises what `check_open` and `check_interruption` raise.
    """
    look = time.monotonic() + ALONE_S
    while True:
        check_open()
        wanted = missing()
        while wanted:
            seen = event.prepare(wanted)
            left = missing()
            if left >= wanted:
                break
            # Units that came before `prepare` are still announced, and as many may come by the next: announce fewer.
            wanted = max(1, 2 * left - wanted) if left else 0
        if not wanted:
            return True
        check_interruption()
        seconds = WAIT_SLICE_S if deadline is None else min(deadline - time.monotonic(), WAIT_SLICE_S)
        if not seconds > 0:
            return False
        event.wait(seen, seconds)
        if alone is not None and time.monotonic() >= look:
            look += ALONE_S
            if text := alone():
                log.warning("%s", text)
                alone = None
