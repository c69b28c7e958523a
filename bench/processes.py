"""Processes from outside: their CPU time and memory, those that have ended, and calls in fresh interpreters."""

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from marlcore.processes import end_with_parent

Result = TypeVar("Result")

TICKS = os.sysconf("SC_CLK_TCK")
LIMIT_S = 600.0


def fresh_processes(count: int) -> ProcessPoolExecutor:
    """Fresh interpreters, which the kernel kills if this program, or the thread that submits their first call, ends."""
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),))


def run_fresh(function: Callable[..., Result], *args: Any) -> Result:
    """The call's result, from a process of its own."""
    with fresh_processes(1) as pool:
        return pool.submit(function, *args).result()


def in_turns(sides: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """What each side returns in each round, in which they take turns: what else the machine does then affects all."""
    taken: dict[str, list[Result]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            taken[name].append(side())
    return taken


def wait_until(until: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not until():
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected a run to get on within {LIMIT_S:g} s")
        time.sleep(0.1)


def cpu_of_descendants(root: int) -> dict[tuple[int, int], float]:
    """CPU-seconds of each living descendant of a process, by its number and the time of its beginning."""
    spent, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*"):
        pid = int(path.name)
        if fields := read(pid, "stat").rpartition(")")[2].split():
            parents[pid] = int(fields[1])
            spent[pid, int(fields[19])] = (int(fields[11]) + int(fields[12])) / TICKS

    def descends(pid: int) -> bool:
        while pid > 1:
            pid = parents.get(pid, 0)
            if pid == root:
                return True
        return False

    return {process: seconds for process, seconds in spent.items() if descends(process[0])}


def read(pid: int, name: str) -> str:
    """A file of a process's directory in /proc; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def title(pid: int) -> str:
    """The name that the kernel shows for a process, such as that of a worker; empty if it has ended."""
    return read(pid, "comm").strip()


def memory_mb(pid: int, file: str, key: str) -> float:
    """A line of status or smaps_rollup, such as VmRSS or Pss; 0 if the process has ended, or is ending."""
    return int((read(pid, file).partition(f"\n{key}:")[2].split() or ["0"])[0]) / 1024


def descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return 0  # it has ended, or is ending


def cpu_seconds() -> float:
    """CPU-seconds of this process and of all that it has waited for."""
    return sum(os.times()[:4])


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
