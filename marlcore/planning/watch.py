"""What is watched while a graph grows: memory that must stay free, and a line of progress on standard error."""

import sys
from pathlib import Path
from time import monotonic

from .. import cgroup
from ..checks import came
from ..errors import NotEnoughMemory

FRAME_S = 0.25
MEMINFO = Path("/proc/meminfo")
_MIB = 1 << 20
_SMALL = _MIB  # bytes that are not worth a look, which takes a quarter of a millisecond


class Watch:
    """Keeps a share of the memory free, an error in time instead of a kill by the kernel; and shows progress.

    Args:
        fraction: of the machine's memory, and of this process's limit, from 0 (no check) to less than 1.
        progress: show states expanded, states found and states per second, rewritten in place, if standard error is a
            terminal.
    """

    def __init__(self, fraction: float, progress: bool) -> None:
        """Raises ValueError: the fraction is out of range."""
        if not isinstance(fraction, (int, float)) or not 0.0 <= fraction < 1.0:
            raise ValueError(f"min_free_memory_fraction: expected a number from 0 to less than 1, got {came(fraction)}")
        self._fraction = fraction
        self._stream = sys.stderr if progress and sys.stderr is not None and sys.stderr.isatty() else None
        self._began = monotonic()
        self._due = self._began + FRAME_S
        self._shown = False

    def look(self, expanded: int, found: int) -> None:
        """Checks the memory and shows the progress, four times a second. Raises NotEnoughMemory."""
        now = monotonic()
        if now < self._due:
            return
        self._due = now + FRAME_S
        self.check_memory(found)
        rate = expanded / max(now - self._began, 1e-9)
        self._write(f"\rmarlcore: {expanded:,} of {found:,} states found so far expanded, {rate:,.0f} states/s ")
        self._shown = True

    def check_memory(self, states: int, nbytes: int = 0) -> None:
        """Raises NotEnoughMemory: less than the share is free, or would be after allocating `nbytes` more."""
        if not self._fraction or 0 < nbytes < _SMALL:
            return
        for whose, free, total in _memory():
            if free - nbytes < self._fraction * total:
                more = f"after allocating {nbytes // _MIB} MiB more " if nbytes else ""
                raise NotEnoughMemory(
                    f"min_free_memory_fraction: expected {self._fraction:g} of {whose} ({total // _MIB} MiB) to stay "
                    f"free {more}at {states} states, got {free // _MIB} MiB free"
                )

    def close(self) -> None:
        """Ends the line."""
        if self._shown:
            self._write("\n")

    def _write(self, text: str) -> None:
        try:
            if self._stream is not None:
                self._stream.write(text)
                self._stream.flush()
        except OSError as error:  # the terminal was closed
            if error.errno is None:  # a signal handler's
                raise
            self._stream = None


def _memory() -> list[tuple[str, int, int]]:
    """The machine's memory and the tightest limit on this process: a name, free bytes, all bytes."""
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free, total = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    limit = cgroup.memory_limit()
    return [("the machine's memory", free, total)] + ([("the memory limit", limit.left, limit.limit)] if limit else [])
