"""Calls in fresh interpreters, which the kernel kills if the program dies."""

import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, TypeVar

from marlcore.processes import end_with_parent

Result = TypeVar("Result")


def fresh_processes(count: int) -> ProcessPoolExecutor:
    """They also die when the thread that submits their first call ends."""
    return ProcessPoolExecutor(count, get_context("spawn"), initializer=end_with_parent, initargs=(os.getpid(),))


def run_fresh(function: Callable[..., Result], *args: Any) -> Result:
    """The call's result, from a process of its own."""
    with fresh_processes(1) as pool:
        return pool.submit(function, *args).result()
