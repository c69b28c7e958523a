"""Short notices to the user: on standard error if it is a terminal, else in the log."""

from __future__ import annotations

import logging
import sys

__all__ = ["say", "say_always"]

_log = logging.getLogger("marlcore")
_always = False


def say_always() -> None:
    """From now on, `say` writes to standard error even if it is no terminal; used by the command line."""
    global _always
    _always = True


def say(text: str) -> None:
    """Print one line on standard error if it is a terminal; otherwise log it at level INFO."""
    if _always or (sys.stderr is not None and sys.stderr.isatty()):
        sys.stderr.write(f"marlcore: {text}\n")
        sys.stderr.flush()
    else:
        _log.info(text)
