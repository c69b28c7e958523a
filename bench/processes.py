"""Processes seen from outside: their CPU time and their titles; and calls in fresh interpreters."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from typing import Any, TypeVar

import psutil

from marlcore.processes import end_with_parent

Result = TypeVar("Result")


def run_fresh(function: Callable[..., Result], *args: Any) -> Result:
    """The call's result, from a fresh interpreter, which the kernel kills if this thread ends first."""
    options = {"initializer": end_with_parent, "initargs": (os.getpid(),)}
    with ProcessPoolExecutor(1, get_context("spawn"), **options) as pool:
        return pool.submit(function, *args).result()


def in_turns(sides: Mapping[str, Callable[[], Result]], rounds: int) -> dict[str, list[Result]]:
    """What each side returns in each round. The sides take turns, so that other load of the machine affects all."""
    taken = [{name: side() for name, side in sides.items()} for _ in range(rounds)]
    return {name: [each[name] for each in taken] for name in sides}


def times_of_descendants(root: int) -> dict[psutil.Process, Any]:
    """The `cpu_times()` of each living descendant of a process."""
    found = {}
    for process in psutil.Process(root).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            found[process] = process.cpu_times()
    return found


def cpu_of_descendants(root: int) -> dict[psutil.Process, float]:
    """CPU-seconds of each living descendant of a process."""
    return {process: times.user + times.system for process, times in times_of_descendants(root).items()}


def title(process: psutil.Process) -> str:
    """The name that the kernel shows, such as that of a worker; empty if the process has ended."""
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""
