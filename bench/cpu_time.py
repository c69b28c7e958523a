"""CPU time of a tree of processes, those that have ended included."""

import os
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_of_descendants(root: int) -> dict[tuple[int, int], float]:
    """CPU-seconds of each living descendant of a process, by its number and the time of its beginning."""
    spent, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        pid = int(path.name)
        parents[pid] = int(fields[1])
        spent[pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / TICKS

    def descends(pid: int) -> bool:
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == root:
                return True
        return False

    return {process: seconds for process, seconds in spent.items() if descends(process[0])}


def title(pid: int) -> str:
    """The name that the kernel shows for a process, such as that of a worker; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class TreeTime:
    """The CPU time of all descendants of a process that were alive at a `look`.

    Look often: the time that a process takes between the last look and its end is not seen.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[tuple[int, int], float] = {}

    def look(self) -> float:
        """CPU-seconds until now."""
        self._seen |= cpu_of_descendants(self._root)
        return sum(self._seen.values())
