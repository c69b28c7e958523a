"""Processes seen from outside: their CPU time and their titles; and calls in fresh interpreters."""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from statistics import median
from typing import Any, TypeVar

import psutil

from marlcore.processes import end_with_parent

Result = TypeVar("Result")


def run_fresh(function: Callable[..., Result], *args: Any) -> Result:
    """The call's result, from a fresh interpreter, which the kernel kills if this thread ends first."""
    with ProcessPoolExecutor(1, get_context("spawn"), end_with_parent, (os.getpid(),)) as pool:
        return pool.submit(function, *args).result()


def in_turns(sides: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """What each side returns in each round. The sides take turns, so that other load of the machine affects all."""
    taken = [{name: side() for name, side in sides.items()} for _ in range(rounds)]
    return {name: [each[name] for each in taken] for name in sides}


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The median of each float; other values are the last round's."""
    last = rounds[-1].items()
    return {name: median(each[name] for each in rounds) if isinstance(end, float) else end for name, end in last}


def descendants() -> dict[psutil.Process, tuple[str, Any]]:
    """The title, such as that of a worker, and the `cpu_times()` of each living descendant of this process."""
    found = {}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found[process] = process.name(), process.cpu_times()
    return found


def cpu_of_descendants(of_title: str = "") -> float:
    """CPU-seconds of this process's living descendants, or of those with this title."""
    return sum(times.user + times.system for title, times in descendants().values() if of_title in ("", title))
