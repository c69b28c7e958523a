"""Processes as a test sees them from outside: their children, their descriptors, their ends."""

import contextlib
import math
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from marlcore.memory import SHM_DIR, survey_segments
from marlcore.memory import sweep as sweep
from marlcore.testing import victim

PATIENCE_S = 1800.0  # for what hangs; far more than a slow machine needs


def children(pid: int) -> list[int]:
    pids: list[int] = []
    tasks = f"/proc/{pid}/task"
    for task in os.listdir(tasks) if os.path.exists(tasks) else []:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError), open(f"{tasks}/{task}/children") as file:
            pids += map(int, file.read().split())  # unless the thread has ended meanwhile
    return pids


def handlers() -> set[str]:
    """This process's handlers of the stop signals. A fork inherits them, and may then outlive such a signal."""
    return {f"{signum}: {signal.getsignal(signum)}" for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}


def family(pid: int) -> list[int]:
    """The processes that a process led to: its children, their children, and so on."""
    return [each for child in children(pid) for each in (child, *family(child))]


def state(pid: int) -> str:
    """R, S, T where it is stopped, Z where it is dead and not reaped, and so on; see proc(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def stop_inside(pid: int, counters: Callable[[], Any], tries: float = math.inf) -> None:
    """Stops a writer's process between its two counters, int64 [lanes, 2], where a kill at random seldom finds it."""
    while (tries := tries - 1) >= 0:
        os.kill(pid, signal.SIGSTOP)
        while state(pid) not in "TZ":
            time.sleep(1e-5)
        committed, reserved = counters().T
        if (reserved > committed).any():
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(1e-3 * random.random())


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def segments_of(pid: int) -> set[Path]:
    from marlcore.cli import gc

    files = survey_segments()
    pids = gc.holders(SHM_DIR, {file.inode for file in files})
    return {SHM_DIR / file.name for file in files if pid in pids.get(file.inode, [])}


def await_ends(pidfds: Iterable[int]) -> None:
    for pidfd in pidfds:
        select.select([pidfd], [], [])
        os.close(pidfd)


def await_gone(pids: Iterable[int]) -> None:
    """Waits until processes have gone that others reap."""
    until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


def await_group(group: int) -> None:
    until(lambda: not victim.living(group))


def until(reached: Callable[[], Any], lives: Callable[[], bool] = lambda: True) -> Any:
    """Waits until `reached` is true, and returns that; a failure once `lives` is not.

    Looks take at most a sixteenth of a core, which the processes waited for need.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        spent = time.thread_time()
        if value := reached():
            return value
        assert lives() and time.monotonic() < deadline
        time.sleep(max(0.01, 15 * (time.thread_time() - spent)))


def start_python(code: str, *arguments: object, beside: str) -> subprocess.Popen[str]:
    """Code in a process group of its own, which finds the modules beside the test file `beside`; its streams piped."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(beside).parent), *sys.path])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
