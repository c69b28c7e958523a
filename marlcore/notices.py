"""Short notices to the user: where progress is shown, else in the log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import suppress_failed_calls

__all__ = ["say", "say_always", "shown_with"]

_log = logging.getLogger("marlcore")
_shown: bool | None = None  # on standard error; None: if that is a terminal


def say_always() -> None:
    """From now on, `say` writes to standard error even if it is no terminal; used by the command line."""
    global _shown
    _shown = True


@contextmanager
def shown_with(progress: bool) -> Iterator[None]:
    """Inside, notices appear if progress does: on standard error, be it a terminal, a pipe or a file, or not at all."""
    global _shown
    before, _shown = _shown, progress
    try:
        yield
    finally:
        _shown = before


def say(text: str) -> None:
    """Print one line on standard error if notices are shown there; otherwise log it at level INFO."""
    if sys.stderr is not None and (sys.stderr.isatty() if _shown is None else _shown):
        with suppress_failed_calls():  # the terminal was closed
            sys.stderr.write(f"marlcore: {text}\n")
            sys.stderr.flush()
    else:
        _log.info(text)
