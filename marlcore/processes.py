"""Starting worker processes, seeing them end, and ending them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import select
import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from .errors import EnvironmentFailed
from .forkserver import KILL_S, ForkServer, leave, read_status, readable
from .rundir import setup_logging
from .workers import Blueprint, run_worker

__all__ = ["Failure", "Interrupts", "WorkerProcess", "check_not_importing", "reason_of", "wait_any"]

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
STATUS_S = 1.0  # for the kernel's word on a dead process to come through
MESSAGE_LIMIT = 12_000  # bytes that go into a pipe whole or not at all; the log has all of a traceback

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """How a worker ended that did not end well.

    Attributes:
        reason: "environment", "worker", "death" or "hang"; see WorkerFailed.
        text: its traceback, or what is known of its end.
    """

    reason: str
    text: str


def reason_of(error: BaseException) -> str:
    """What failed when a worker raises."""
    return "environment" if isinstance(error, EnvironmentFailed) else "worker"


class WorkerProcess:
    """One worker in a process of its own.

    Attributes:
        name: the worker's. pid: of the process.
    """

    def __init__(self, server: ForkServer, name: str, blueprint: Blueprint, log: Path, attempt: int) -> None:
        """Raises OSError: the system starts no further process."""
        self.name = name
        self._errors, child_end = multiprocessing.Pipe(duplex=False)
        try:
            with child_end:
                # What is of the user's modules is unpickled in the worker alone, where its errors are the worker's.
                self._process = server.fork(
                    child_end.fileno(), _work, _surroundings(name), name, log, attempt, pickle.dumps(blueprint)
                )
        except BaseException:
            self._errors.close()
            raise
        self.pid = self._process.pid

    @property
    def pidfd(self) -> int:
        """Readable when the process has ended."""
        return self._process.pidfd

    @property
    def running(self) -> bool:
        return not readable(self.pidfd, 0.0)

    def failure(self) -> Failure | None:
        """Why the worker raised, or how it died; None while it runs or when it ended well."""
        if self.running:
            return None
        try:
            if self._errors.poll():
                said = self._errors.recv()
                return Failure(*said) if said else None
        except (EOFError, OSError):
            pass  # it died before or in the middle of sending
        code = read_status(self._process.status) if readable(self._process.status, STATUS_S) else None
        reason = "worker" if code is not None and code >= 0 else "death"
        return Failure(reason, f"the process ended with {_describe(code)} and left no traceback")

    def kill(self) -> None:
        """Ends the process at once."""
        with suppress(ProcessLookupError):  # it has ended
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process if it still runs, and gives back what it held here."""
        self.kill()
        if not readable(self.pidfd, KILL_S):  # it waits in a driver, or for a file system that never answers
            log.error(
                "%s: process %d did not end within %g s of SIGKILL and is left alone", self.name, self.pid, KILL_S
            )
        self._errors.close()
        os.close(self._process.pidfd)
        os.close(self._process.status)


class Interrupts:
    """While entered, SIGINT and SIGTERM are noted instead of raising in the middle of something.

    Attributes:
        signum: the first signal that came, or None.
        count: how many came.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.count = 0
        self._previous: dict[int, Any] = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        self.count += 1

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._previous = {signum: signal.signal(signum, self._note) for signum in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)


def wait_any(processes: list[WorkerProcess], seconds: float) -> None:
    """Sleeps until one of the processes has ended or the time is up."""
    poll = select.poll()
    for process in processes:
        poll.register(process.pidfd, select.POLLIN)
    poll.poll(seconds * 1000)


def _work(
    errors: Connection, surroundings: dict[str, Any], name: str, log: Path, attempt: int, blueprint: bytes
) -> None:
    """A worker's life, in its process."""
    try:
        setup_logging(log)
        with _importing():
            spawn.prepare(surroundings)
            given = pickle.loads(blueprint)
        run_worker(name, given, attempt)
        errors.send(None)  # all is done: what it does not say itself is told by how it ended
    except BaseException as error:
        text = traceback.format_exc()
        logging.getLogger(__name__).error("%s failed:\n%s", name, text)
        errors.send((reason_of(error), text.encode()[-MESSAGE_LIMIT:].decode(errors="ignore")))
        logging.shutdown()
        leave(1)
    logging.shutdown()
    leave(0)


@contextmanager
def _importing() -> Iterator[None]:
    """While entered, this process imports what the run's user wrote, as multiprocessing's own children say it."""
    process: Any = multiprocessing.current_process()
    process._inheriting = True
    try:
        yield
    finally:
        del process._inheriting


def check_not_importing() -> None:
    """Raises RuntimeError: this is a worker that imports the user's program, which starts a run when imported."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            'a program that starts runs is imported by their workers: start it below `if __name__ == "__main__":`'
        )


def _surroundings(name: str) -> dict[str, Any]:
    """What multiprocessing gives the processes that it spawns: `__main__`, arguments, folder, path."""
    found = spawn.get_preparation_data(name)
    found["authkey"] = bytes(found["authkey"])  # its own class is pickled by multiprocessing alone
    return found


def _describe(exitcode: int | None) -> str:
    if exitcode is None:
        return "the process that it was forked from"
    if exitcode < 0:
        names = {signum.value: signum.name for signum in signal.Signals}
        return f"signal {names.get(-exitcode, -exitcode)}"
    return f"exit code {exitcode}"
