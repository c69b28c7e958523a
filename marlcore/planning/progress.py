"""What a terminal shows while a graph grows: one line, rewritten in place."""

from __future__ import annotations

import sys
from time import monotonic
from types import TracebackType

FRAME_S = 0.25


class Progress:
    """A line on standard error: states expanded, states found, states per second.

    Nothing is shown if standard error is no terminal.

    Args:
        shown: whether to show anything.
    """

    def __init__(self, shown: bool) -> None:
        self._stream = sys.stderr if shown and sys.stderr is not None and sys.stderr.isatty() else None
        self._began = monotonic()
        self._drawn = False

    def show(self, expanded: int, found: int) -> None:
        """Rewrites the line."""
        rate = expanded / max(monotonic() - self._began, 1e-9)
        self._write(f"\rmarlcore: {expanded:,} of {found:,} states found so far expanded, {rate:,.0f} states/s ")
        self._drawn = True

    def _write(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except OSError as error:  # the terminal was closed
            if error.errno is None:  # a signal handler's
                raise
            self._stream = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._drawn:
            self._write("\n")
