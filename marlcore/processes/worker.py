"""Starting worker processes, seeing them end, and ending them."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import select
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from ..errors import EnvironmentFailed
from .forkserver import KILL_S, ForkServer, leave, read_status, readable

__all__ = ["Failure", "WorkerProcess", "check_picklable", "reason_of", "wait_any"]

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

    What it is given is pickled by value where other processes cannot import it: what `__main__`, a notebook's cell or
    another function defines. So a worker never imports the program that started it.

    Args:
        server: forks the process.
        name: the worker's.
        work: what the process does.
        prepare: called before `work` is unpickled, such as to set up a log that has that error too.

    Attributes:
        name: the worker's. pid: of the process.
    """

    def __init__(
        self, server: ForkServer, name: str, work: Callable[[], None], prepare: Callable[[], None] | None = None
    ) -> None:
        """Raises OSError: the system starts no further process."""
        self.name = name
        task = cloudpickle.dumps(work)
        self._errors, child_end = multiprocessing.Pipe(duplex=False)
        try:
            with child_end:
                # The task is unpickled where an error in it is the worker's, and reported.
                self._process = server.fork(child_end.fileno(), _work, _surroundings(name), name, prepare, task)
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


def wait_any(processes: list[WorkerProcess], seconds: float) -> None:
    """Sleeps until one of the processes has ended or the time is up."""
    poll = select.poll()
    for process in processes:
        poll.register(process.pidfd, select.POLLIN)
    poll.poll(seconds * 1000)


def check_picklable(**things: Any) -> None:
    """Raises TypeError: one of the things cannot be handed to a process; the message has its name."""
    for name, thing in things.items():
        try:
            cloudpickle.dumps(thing)
        except Exception as error:  # whatever a thing's own way to be pickled raises
            reason = str(error).partition("\n")[0]
            raise TypeError(f"{name}: expected something that can be pickled, got {thing!r} ({reason})") from None


def _work(
    errors: Connection,
    surroundings: dict[str, Any],
    name: str,
    prepare: Callable[[], None] | None,
    task: bytes,
) -> None:
    """A worker's life, in its process."""
    try:
        spawn.prepare(surroundings)
        if prepare is not None:
            prepare()
        pickle.loads(task)()
        errors.send(None)  # all is done: what it does not say itself is told by how it ended
    except BaseException as error:
        text = traceback.format_exc()
        if log.hasHandlers():  # else the parent alone says it
            log.error("%s failed:\n%s", name, text)
        errors.send((reason_of(error), text.encode()[-MESSAGE_LIMIT:].decode(errors="ignore")))
        logging.shutdown()
        leave(1)
    logging.shutdown()
    leave(0)


def _surroundings(name: str) -> dict[str, Any]:
    """What multiprocessing gives the processes that it spawns, except `__main__`: arguments, folder, path."""
    given = spawn.get_preparation_data(name)
    found = {key: value for key, value in given.items() if not key.startswith("init_main")}
    found["authkey"] = bytes(found["authkey"])  # its own class is pickled by multiprocessing alone
    return found


def _describe(exitcode: int | None) -> str:
    if exitcode is None:
        return "the process that it was forked from"
    if exitcode < 0:
        names = {signum.value: signum.name for signum in signal.Signals}
        return f"signal {names.get(-exitcode, -exitcode)}"
    return f"exit code {exitcode}"
