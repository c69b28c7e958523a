"""The options of a command: the fields of a dataclass, whose docstrings are the help."""

from __future__ import annotations

import contextlib
import io
from typing import TypeVar

import tyro

__all__ = ["parse"]

T = TypeVar("T")


def parse(kind: type[T], arguments: list[str], command: str) -> T:
    """The options of `marlcore <command>`, as the dataclass `kind`.

    Raises: ValueError: an option is unknown or out of range, in one line. SystemExit: --help was shown.
    """
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(kind, args=arguments, prog=f"marlcore {command}")
    except SystemExit as end:
        if not end.code:
            raise
    raise ValueError(_first_message(errors.getvalue()))


def _first_message(box: str) -> str:
    """The message of the box that the option parser draws around an error, as one line."""
    lines = [line.strip("│ ") for line in box.splitlines() if not line.startswith(("╭", "╰"))]
    message = []
    for line in lines:
        if line.startswith("─"):
            break
        message.append(line)
    return " ".join(message)
