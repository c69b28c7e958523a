"""Worker processes: starting one, noticing its end, killing it."""

from __future__ import annotations

import errno
import logging
import multiprocessing
import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import spawn
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from ..errors import Diverged, EnvironmentFailed, pass_on_from_handler, suppress_failed_calls
from ..memory import too_many_files
from .forkserver import KILL_S, Forked, ForkServer, leave, read_status, readable
from .title import show_title

STATUS_S = 1.0  # for a dead process's exit status to arrive
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
MESSAGE_LIMIT = 12_000  # bytes; such a message enters a pipe whole or not at all; the log has the whole traceback

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """The failure of a worker.

    Attributes:
        reason: "environment", "worker", "diverged", "death" or "hang"; see WorkerFailed.
        text: the worker's traceback, or how its process ended.
    """

    reason: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure by the exception that is handled now: with its traceback, unless its message tells all."""
        if isinstance(error, Diverged):
            return cls("diverged", str(error))
        if isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is not None:
            return cls("worker", str(error))
        return cls("environment" if isinstance(error, EnvironmentFailed) else "worker", traceback.format_exc())


class ChildProcess:
    """A process that the fork server started.

    Attributes:
        name: the worker's name. pid: its process id.
    """

    def __init__(self, name: str, process: Forked) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process
        self._open = [process.pidfd, process.status]

    @property
    def pidfd(self) -> int:
        """A pidfd; readable when the process has ended."""
        return self._process.pidfd

    @property
    def running(self) -> bool:
        return not readable(self.pidfd, 0.0)

    def kill(self) -> None:
        """Kills the process at once."""
        with suppress_failed_calls(errno.ESRCH):  # it has already ended
            if self._open:  # else the number may be another file's
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Kills the process if it still runs, and closes this side's descriptors; after an interrupt, call it again."""
        self.kill()
        if self._open and not readable(
            self.pidfd, KILL_S
        ):  # it sleeps uninterruptibly, in a driver or on a dead file system
            log.error(
                "%s: process %d did not end within %g s of SIGKILL and is left alone", self.name, self.pid, KILL_S
            )
        while self._open:
            os.close(self._open.pop())

    def ending(self) -> Failure:
        """How a process that has ended did so, by its exit status."""
        code = read_status(self._process.status) if readable(self._process.status, STATUS_S) else None
        reason = "worker" if code is not None and code >= 0 else "death"
        return Failure(reason, f"the process ended with {_describe(code)} and left no traceback")


@contextmanager
def needing_descriptors(name: str) -> Iterator[None]:
    """Names the worker in the OSError for too many open files."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise
        raise OSError(error.errno, str(too_many_files(name))) from None


class WorkerProcess(ChildProcess):
    """One worker in its own process.

    Arguments that another process cannot import are pickled by value: definitions in `__main__`, in a notebook or in a
    function's body. So a worker never imports the program that started it.

    Args:
        server: forks the process.
        name: the worker's name.
        work: the function that the process calls.
        prepare: called before `work` is unpickled, for example to set up a log that also records an unpickling error.
    """

    def __init__(
        self, server: ForkServer, name: str, work: Callable[[], None], prepare: Callable[[], None] | None = None
    ) -> None:
        """Raises OSError: the system cannot start another process."""
        task = cloudpickle.dumps(work)
        with needing_descriptors(name):
            self._errors, child_end = multiprocessing.Pipe(duplex=False)
        try:
            with child_end, needing_descriptors(name):
                # The worker unpickles the task, so that an error in it is reported as the worker's.
                process = server.fork(child_end.fileno(), _work, surroundings(name), name, prepare, task)
        except BaseException:
            self._errors.close()
            raise
        super().__init__(name, process)

    def failure(self) -> Failure | None:
        """How the worker failed; None while it runs or if it ended well."""
        if self.running:
            return None
        try:
            if self._errors.poll():
                said = self._errors.recv()
                return Failure(*said) if said else None
        except (EOFError, OSError) as error:
            if not has_ended(error):  # it died before or while sending
                raise
        return self.ending()

    def close(self) -> None:
        """Kills the process if it still runs, and closes this side's descriptors."""
        super().close()
        self._errors.close()


def has_ended(error: EOFError | OSError) -> bool:
    """Whether an error of a `Connection` means that its other end is gone, not that a signal handler raised it."""
    if isinstance(error, OSError):
        return error.errno in (errno.EPIPE, errno.ECONNRESET) or str(error) == "got end of file during message"
    return True


def leave_if_forked(worker: int) -> None:
    """Ends this process at once, undoing nothing, unless its id is the worker's.

    An environment may fork. A fork that comes back from the environment's code is not the worker, and must neither
    report nor close anything in the worker's name.
    """
    if os.getpid() == worker:
        return
    error = sys.exc_info()[1]
    if error is None or (isinstance(error, SystemExit) and not error.code):
        os._exit(0)
    if not isinstance(error, SystemExit):
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def wait_any(processes: list[WorkerProcess], seconds: float) -> None:
    """Sleeps until one of the processes has ended, or until the timeout."""
    poll = select.poll()
    for process in processes:
        poll.register(process.pidfd, select.POLLIN)
    poll.poll(seconds * 1000)


def check_picklable(**things: Any) -> None:
    """Raises TypeError: a value cannot be pickled for another process; the message has its name."""
    for name, thing in things.items():
        try:
            cloudpickle.dumps(thing)
        except Exception as error:  # a class's own pickling may raise anything
            pass_on_from_handler(error)
            reason = str(error).partition("\n")[0]
            raise TypeError(f"{name}: expected something that can be pickled, got {thing!r} ({reason})") from None


def _work(
    errors: Connection,
    surroundings: dict[str, Any],
    name: str,
    prepare: Callable[[], None] | None,
    task: bytes,
) -> None:
    """Runs a worker in its process."""
    pid = os.getpid()
    try:
        enter(surroundings)
        if prepare is not None:
            prepare()
        pickle.loads(task)()
        leave_if_forked(pid)
        errors.send(None)  # done; without this message, the exit status tells how the worker ended
    except BaseException as error:
        leave_if_forked(pid)
        if log.hasHandlers():  # otherwise only the parent logs it
            log.error("%s failed:\n%s", name, traceback.format_exc())
        failure = Failure.of(error)
        text = failure.text.encode(errors="backslashreplace")  # a lone surrogate has no UTF-8
        errors.send((failure.reason, text[-MESSAGE_LIMIT:].decode(errors="ignore")))
        logging.shutdown()
        leave(1)
    logging.shutdown()
    leave(0)


def surroundings(name: str) -> dict[str, Any]:
    """multiprocessing's preparation data for spawned processes, without `__main__`: arguments, directory, path."""
    given = spawn.get_preparation_data(name)
    found = {key: value for key, value in given.items() if not key.startswith("init_main")}
    found["authkey"] = bytes(found["authkey"])  # only multiprocessing can pickle its class
    return found


def enter(surroundings: dict[str, Any]) -> None:
    """In the process: gives it its surroundings, and its name in `ps`."""
    spawn.prepare(surroundings)
    show_title(surroundings["name"])


def _describe(exitcode: int | None) -> str:
    if exitcode is None:
        return "the process that it was forked from"
    if exitcode < 0:
        names = {signum.value: signum.name for signum in signal.Signals}
        return f"signal {names.get(-exitcode, -exitcode)}"
    return f"exit code {exitcode}"
