"""Children that the kernel kills when this process dies, in whatever state they are (`PR_SET_PDEATHSIG`).

The kernel sends that signal when the thread that started the child ends, not the process. A process's first thread
lives as long as the process and starts children itself. For any other thread, a new one starts the child and then lives
until the child is dead. The parent's half is `start_child`; the child calls `end_with_parent` before all else.
"""

from __future__ import annotations

import ctypes
import errno
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress

PR_SET_PDEATHSIG = 1  # linux/prctl.h

Program = subprocess.Popen[bytes]


def start_child(start: Callable[[], Program]) -> Program:
    """Calls `start` in a thread that outlives the child. Raises OSError: no thread starts; what `start` raises."""
    if threading.get_native_id() == os.getpid():
        return start()
    outcome: queue.SimpleQueue[Program | BaseException] = queue.SimpleQueue()
    try:
        threading.Thread(target=_start_and_stay, args=(start, outcome), name="marlcore-parent", daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error
    came = outcome.get()
    if isinstance(came, BaseException):
        raise came
    return came


def _start_and_stay(start: Callable[[], Program], outcome: queue.SimpleQueue[Program | BaseException]) -> None:
    try:
        process = start()
    except BaseException as error:
        outcome.put(error)
        return
    outcome.put(process)
    with suppress(ChildProcessError):  # the owner has already noticed its end
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies, whatever state either is in."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the prctl
        os._exit(1)
