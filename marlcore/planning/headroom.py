"""The share of memory that stays free while a graph grows: an error in time, instead of the kernel's killing."""

from __future__ import annotations

from pathlib import Path

from .. import cgroup
from ..checks import came
from ..errors import NotEnoughMemory

MEMINFO = Path("/proc/meminfo")
_MIB = 1 << 20
_SMALL = _MIB  # bytes that are not worth a look, which takes a quarter of a millisecond


class Headroom:
    """Checks that a share of the machine's memory, and of this process's memory limit, stays free.

    Args:
        fraction: of the memory, from 0 (no check) to less than 1.
    """

    def __init__(self, fraction: float) -> None:
        """Raises ValueError: the fraction is out of range."""
        if not isinstance(fraction, (int, float)) or not 0.0 <= fraction < 1.0:
            raise ValueError(f"min_free_memory_fraction: expected a number from 0 to less than 1, got {came(fraction)}")
        self._fraction = fraction

    def check(self, states: int, nbytes: int = 0) -> None:
        """Raises NotEnoughMemory: less than the share is free, or would be after allocating `nbytes` more.

        Args:
            states: found so far, for the message.
        """
        if not self._fraction or 0 < nbytes < _SMALL:
            return
        for whose, free, total in _memory():
            if free - nbytes < self._fraction * total:
                asked = f"after allocating {nbytes // _MIB} MiB more " if nbytes else ""
                raise NotEnoughMemory(
                    f"min_free_memory_fraction: expected {self._fraction:g} of {whose} ({total // _MIB} MiB) to stay "
                    f"free {asked}at {states} states, got {free // _MIB} MiB free"
                )


def _memory() -> list[tuple[str, int, int]]:
    """The machine's memory and the tightest limit on this process: a name, free bytes, all bytes."""
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free, total = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    limit = cgroup.memory_limit()
    return [("the machine's memory", free, total)] + ([("the memory limit", limit.left, limit.limit)] if limit else [])
