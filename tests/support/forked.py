"""What the tests of the fork server have it fork: a module that programs import in a moment."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any

from marlcore.processes import ForkServer, children
from marlcore.processes.fork_server import read_status


class Child:
    def __init__(self, server: ForkServer, function: Callable[..., None], *args: Any, early: bool = False) -> None:
        self._report, theirs = Pipe(duplex=False)
        with theirs:
            self.pid, self.pidfd, self._status = server.fork(theirs.fileno(), function, *args, early=early)

    def receive(self) -> Any:
        return self._report.recv()

    def lives(self) -> bool:
        return not select.select([self.pidfd], [], [], 0.0)[0]

    def status(self) -> int | None:
        select.select([self.pidfd], [], [])
        return read_status(self._status)

    def close(self) -> None:
        self._report.close()
        os.close(self.pidfd)
        os.close(self._status)


def tell(report: Connection, what: str) -> None:
    answers = {
        "environment": lambda: os.environ.get("MARLCORE_TEST"),
        "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "modules": lambda: sorted({"wave"} & sys.modules.keys()),
        "imported": lambda: "imported_by_the_caller" in sys.modules,
        "torch's threads": lambda: sys.modules["torch"].get_num_threads(),
        "descriptors": lambda: sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 100) if is_open(fd)),
    }
    report.send(answers[what]())


def end(report: Connection, how: int) -> None:
    if how < 0:
        os.kill(os.getpid(), -how)
    os._exit(how)


def work(report: Connection, seconds: float) -> None:
    """Works for `seconds` of CPU time."""
    while time.process_time() < seconds:
        pass


def linger(report: Connection) -> None:
    report.send(os.getpid())
    time.sleep(600.0)


def is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def tell_flags(report: Connection) -> None:
    report.send((sys.flags.optimize, sys.flags.dont_write_bytecode, [is_open(fd) for fd in range(3)]))


def attach(report: Connection, name: str) -> None:
    memory = SharedMemory(name)
    report.send(bytes(memory.buf[:4]))
    memory.close()


def lead(report: Connection, program: Callable[..., Any], *arguments: Any) -> None:
    """A program in a process group of its own, whose runs' servers are forks of it, with all that it has imported."""
    os.setsid()
    children.ForkServer = lambda preload, hurry, fork, early: ForkServer(preload, hurry, True, early)
    program(*arguments)
