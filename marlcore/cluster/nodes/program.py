"""The program of an agent, as the agent has it; `__main__.py` is what it does."""

import errno
import os
import pickle
import subprocess
import sys
from functools import partial
from typing import Any

import cloudpickle

from ...closing import Closing
from ...errors import WorkerFailed, suppress_failed_calls
from ...processes import start_child
from ...run import Memory, RunSpec

SUPERVISOR = "supervisor"  # the worker that failed where a program died
KILL_S = 10.0


class Program(Closing):
    """A program that supervises workers. The kernel kills it, and then the workers, when this process dies."""

    def __init__(self, spec: RunSpec, memory: Memory) -> None:
        self._result, theirs = os.pipe()
        command = [sys.executable, "-m", f"{__package__}", str(os.getpid()), str(theirs)]
        start: Any = partial(subprocess.Popen, command, stdin=subprocess.PIPE, pass_fds=[theirs])
        self._failed: WorkerFailed | None = None
        try:
            process: Any = start_child(start)
        except BaseException:
            os.close(self._result)
            raise
        finally:
            os.close(theirs)
        self._process = process
        with suppress_failed_calls(errno.EPIPE), process.stdin as pipe:  # if it died, `failure` tells
            pipe.write(pickle.dumps(sys.path))
            pipe.write(cloudpickle.dumps((spec, memory)))

    def failure(self) -> WorkerFailed | None:
        """Why it ended; None while it runs."""
        if self._failed is None and self._process.poll() is not None:
            with os.fdopen(os.dup(self._result), "rb") as file:
                pickled = file.read()
            died = f"its program ended with exit code {self._process.returncode}"
            self._failed = pickle.loads(pickled) if pickled else WorkerFailed(SUPERVISOR, "death", died)
        return self._failed

    def close(self) -> None:
        """Waits for its end, for which its control block asks; then kills it."""
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._result)
