"""Short notices to the user, printed if progress is shown, otherwise logged."""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .checks import printable
from .errors import suppress_failed_calls

_log = logging.getLogger("marlcore")
_by_default: bool | None = None  # whether notices are shown on standard error; None: only if it is a terminal
_inside: dict[object, bool] = {}  # the open blocks of `shown_with`, in any thread, the newest last


def say_always() -> None:
    """Makes `say` write to standard error from now on, even if it is no terminal; used by the command line."""
    global _by_default
    _by_default = True


@contextmanager
def shown_with(progress: bool) -> Iterator[None]:
    """Shows notices during a `with` block if `progress`, even without a terminal; otherwise logs them.

    This holds for every thread, since any thread may compile a kernel. Of several open blocks, the newest counts.
    """
    block = object()
    _inside[block] = progress
    try:
        yield
    finally:
        del _inside[block]


def say(text: str) -> None:
    """Prints one line on standard error if notices are shown there; otherwise logs the line at level INFO."""
    shown = [_by_default, *_inside.values()][-1]
    if sys.stderr is not None and (sys.stderr.isatty() if shown is None else shown):
        with suppress_failed_calls():  # the terminal was closed
            sys.stderr.write(f"marlcore: {printable(text)}\n")
            sys.stderr.flush()
    else:
        _log.info(text)
