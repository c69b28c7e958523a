"""Removes what a lost agent leaves on its machine. Apart, so that the task of Ray that does it imports no runs."""

import errno
import os
import signal
import time
from pathlib import Path

from ...errors import suppress_failed_calls
from ...memory import sweep

LOOK_S = 0.2  # seconds between two sweeps
SWEEPS = 10


def began(pid: int) -> str:
    """Returns a process's start time, which distinguishes it from later processes with its pid; "" if it is gone."""
    with suppress_failed_calls():
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return ""


def clean_up(pid: int, start_time: str) -> None:
    """Kills a lost agent on this machine and removes its segments; the kernel kills the agent's workers with it."""
    if start_time and began(pid) == start_time:
        with suppress_failed_calls(errno.ESRCH):
            os.kill(pid, signal.SIGKILL)
    for _ in range(SWEEPS):
        time.sleep(LOOK_S)  # the kernel needs time to end the processes
        sweep()
