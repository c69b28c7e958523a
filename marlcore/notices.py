"""Short lines for a person who waits: on standard error where somebody sees it, else in the log."""

from __future__ import annotations

import logging
import sys

__all__ = ["say", "say_always"]

_log = logging.getLogger("marlcore")
_always = False


def say_always() -> None:
    """From now on `say` writes to standard error, whatever that is: for the command line."""
    global _always
    _always = True


def say(text: str) -> None:
    """One line: on standard error when it is a terminal, else a log record of level INFO."""
    if _always or (sys.stderr is not None and sys.stderr.isatty()):
        sys.stderr.write(f"marlcore: {text}\n")
        sys.stderr.flush()
    else:
        _log.info(text)
