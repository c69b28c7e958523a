"""Victims: forked processes that a test kills; and memory in which they leave numbers that outlive them."""

import mmap
import os
import signal
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np


def fork(work: Callable[..., int | None], *arguments: Any) -> int:
    """A child that does this work, and nothing more; it exits with what `work` returns, or 1 where it raises."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work(*arguments) or 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())  # at once: who waits for its first line may kill this child then
    finally:
        os._exit(code)


def reap(pid: int) -> int:
    """Waits for a child; its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> None:
    """Ends a child, which must not have ended otherwise."""
    os.kill(pid, signal.SIGKILL)
    assert reap(pid) == -signal.SIGKILL


def shared_numbers(rows: int, columns: int) -> np.ndarray:
    """int64 [rows, columns], zero, shared with children that are forked later."""
    size = -(-8 * rows * columns // mmap.PAGESIZE) * mmap.PAGESIZE
    return np.frombuffer(mmap.mmap(-1, size), np.int64, rows * columns).reshape(rows, columns)
