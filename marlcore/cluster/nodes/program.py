"""The agent's handle on the program that supervises its workers; `__main__.py` is the program itself."""

import errno
import os
import pickle
import subprocess
import sys
from functools import partial
from typing import Any

from ...closing import Closing
from ...errors import WorkerFailed, suppress_failed_calls
from ...processes import EARLY, PRELOAD, dumps, start_child
from ...run import Memory, RunSpec

SUPERVISOR = "supervisor"  # named as the failed worker if the program itself died
KILL_S = 10.0


class Program(Closing):
    """A child process that supervises workers. When this process dies, the kernel kills the child, then the workers."""

    def __init__(self, spec: RunSpec, memory: Memory) -> None:
        self._result = os.memfd_create("failure")  # a pipe has no room for the tracebacks of many attempts
        command = [sys.executable, "-m", f"{__package__}", str(os.getpid()), str(self._result)]
        start: Any = partial(subprocess.Popen, command, stdin=subprocess.PIPE, pass_fds=[self._result])
        self._failed: WorkerFailed | None = None
        try:
            process: Any = start_child(start)
        except BaseException:
            os.close(self._result)
            raise
        self._process = process
        with suppress_failed_calls(errno.EPIPE), process.stdin as pipe:  # if it has died, `failure` says so
            light = memory.crew.count and spec.acts_compiled  # no worker here needs torch
            pipe.write(pickle.dumps((sys.path, EARLY if light else PRELOAD)))
            pipe.write(dumps((spec, memory)))

    def failure(self) -> WorkerFailed | None:
        """Returns the reason why the program ended, or None while the program runs."""
        if self._failed is None and self._process.poll() is not None:
            code, pickled = self._process.returncode, os.pread(self._result, os.fstat(self._result).st_size, 0)
            died = WorkerFailed(SUPERVISOR, "death", f"its program ended with exit code {code}")
            self._failed = pickle.loads(pickled) if pickled and code == 0 else died
        return self._failed

    def close(self) -> None:
        """Waits for the program to end, and kills it after 10 s. The control block must already say stop."""
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._result)
