"""Starts, watches and ends child processes, each of which has one owner.

The owner reacts to a death: a `Supervisor` restarts the worker, `Workers` fail, a `Pool` replaces the process.
"""

import errno
import logging
import multiprocessing
import os
import pickle
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import spawn
from multiprocessing.connection import Connection
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

from ..closing import ClosedAfterError, Closing
from ..errors import Deadlocked, Diverged, EnvironmentFailed, WorkerFailed, suppress_failed_calls
from ..memory import too_many_files
from .fork_server import CLOSED, KILL_S, STATUS_S, ForkServer, cause_of, read_status
from .logs import has_log_file
from .pickling import dumps
from .serve import leave, readable, show_title
from .signals import STACKS, Interrupts, Postponed

EARLY = ("marlcore.preload",)  # modules that actors and evaluators without torch need
PRELOAD = (*EARLY, "marlcore.preload_torch")  # modules that workers of marlcore need
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
TEXT_LIMIT = 12_000  # bytes of a traceback, which fit into a socket's buffer: the parent reads only at the end
OF_MAIN = "a worker does not run the program's own file: put the functions of its child processes into a module"
PACKAGE = f"{Path(__file__).absolute().parents[1]}{os.sep}"
_DONE, _FAILED = b"+", b"-"  # first byte of a message

log = logging.getLogger(__name__)


class Children(Closing):
    """The child processes of one owner, forked by a server that has imported `preload`.

    After a signal that `interrupts` notes, no method waits for a starting server. Without `interrupts`, signals are
    noted only in `uninterrupted`. A given `server` is used but not closed. `fork`, `early`: see `ForkServer`.
    """

    def __init__(
        self,
        preload: Sequence[str] = PRELOAD,
        interrupts: Interrupts | None = None,
        server: ForkServer | None = None,
        fork: bool | None = False,
        early: Sequence[str] = (),
    ) -> None:
        self.interrupts = interrupts or Interrupts()
        self._borrows = server is not None
        self.server = server or ForkServer(preload, lambda: self.interrupts.stopping, fork, early)
        self.living: list[Child] = []  # not yet ended by `end`, in the order of their start

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Delays stop signals until the end of a `with` block, so that they cannot lose a process that just started."""
        self.interrupts = postponed = Postponed()
        try:
            with postponed:
                yield
        finally:
            postponed.deliver()

    def start(self, name: str, main: Callable[..., None], *args: Any, early: bool = False) -> "Child":
        """Runs main(connection, surroundings, *args) in a new process. Raises the errors of `ForkServer.fork`."""
        self.living.append(Child(self.server, name, main, *args, early=early))
        return self.living[-1]

    def start_worker(
        self, name: str, work: Callable[[], None], prepare: Callable[[], None] | None = None, early: bool = False
    ) -> "Child":
        """Runs prepare(), which may set up a log, then work() in a new process; `Child.failure` returns the outcome.

        Definitions in `__main__`, in a notebook or in a function, which another process cannot import, are pickled by
        value. So a worker never imports the program that started it.
        """
        return self.start(name, _work, prepare, dumps(work), early=early)

    def wait(self, seconds: float) -> None:
        """Sleeps until a process has ended, at most `seconds`."""
        readable(seconds, *(child.pidfd for child in self.living))

    def end(self, child: "Child") -> None:
        """Kills a process if it still runs, and closes its descriptors. After an interrupt, call it again."""
        child.close()
        if child in self.living:
            self.living.remove(child)

    def close(self) -> None:
        """Ends every process, and the server unless it is borrowed."""
        for child in self.living:
            child.kill()  # kills all before it waits for the first
        for child in [*self.living]:
            self.end(child)
        if not self._borrows:
            self.server.close()


class Child:
    """A process that a fork server started, and this side of the connection to it."""

    def __init__(
        self, server: ForkServer, name: str, main: Callable[..., None], *args: Any, early: bool = False
    ) -> None:
        self.name = name
        try:
            server.begin()  # first, since a server that is a fork of this process would hold the pipe's ends
            self.connection, theirs = multiprocessing.Pipe()
            with ClosedAfterError(self.connection), theirs:
                forked = server.fork(theirs.fileno(), main, _surroundings(name, server.environ), *args, early=early)
                self.pid, self.pidfd, self._status = forked
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise OSError(error.errno, str(too_many_files(name))) from None
        self._open = [self.pidfd, self._status]

    @property
    def running(self) -> bool:
        return bool(self._open) and not readable(0.0, self.pidfd)

    @property
    def is_stopped(self) -> bool:
        """Whether a signal, such as SIGSTOP, or a debugger has stopped the process."""
        with suppress_failed_calls():  # the process has just ended
            return Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"tT"
        return False

    def send(self, request: bytes) -> None:
        """Sends a request, which is lost if the process is dead, as `running` then shows."""
        with suppress_failed_calls(*CLOSED):
            self.connection.send_bytes(request)

    def receive(self) -> memoryview | WorkerFailed | None:
        """Returns the process's next result or failure; None if there is none yet, or if the process is dead."""
        try:
            message = self.connection.recv_bytes() if self.connection.poll() else None
        except EOFError:
            return None
        except OSError as error:  # the other end is gone, or a signal handler raised it
            if error.errno not in CLOSED and str(error) != "got end of file during message":
                raise
            return None
        if message is None:
            return None
        return memoryview(message)[1:] if message.startswith(_DONE) else pickle.loads(message[1:])

    def failure(self) -> WorkerFailed | None:
        """Returns the failure of a worker that has ended; None if it succeeded."""
        result = self.receive()
        if result is None:
            return self.ending()
        return result if isinstance(result, WorkerFailed) else None

    def ending(self) -> WorkerFailed:
        """Returns the failure of a process that has ended without a message, from its exit status."""
        code = read_status(self._status) if readable(STATUS_S, self._status) else None
        cause = "the process that it was forked from" if code is None else cause_of(code)
        reason = "worker" if code is not None and code >= 0 else "death"
        return WorkerFailed(self.name, reason, f"the process ended with {cause} and left no traceback")

    def kill(self) -> None:
        self._signal(signal.SIGKILL)

    def ask_for_stacks(self) -> None:
        """Makes the process write its stacks. A process that never called `write_stacks_when_asked` ends instead."""
        self._signal(STACKS)

    def _signal(self, signum: int) -> None:
        with suppress_failed_calls(errno.ESRCH):  # the process has already ended
            if self._open:  # a closed descriptor's number may be another file's
                signal.pidfd_send_signal(self.pidfd, signum)

    def close(self) -> None:
        """Kills the process if it still runs, and closes this side's descriptors; may be called again."""
        self.kill()
        if self._open and not readable(KILL_S, self.pidfd):  # it hangs in a driver or in a file system
            log.error(
                "%s: process %d did not end within %g s of SIGKILL and is left alone", self.name, self.pid, KILL_S
            )
        while self._open:
            os.close(self._open.pop())
        self.connection.close()


def _surroundings(name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    data = {key: value for key, value in spawn.get_preparation_data(name).items() if not key.startswith("init_main")}
    own = {"authkey": bytes(data["authkey"])}  # only multiprocessing can pickle its class
    # Only what has changed since the server began, in which preloaded modules may have set more.
    changed = {key: os.environ.get(key) for key, _ in os.environ.items() ^ environ.items()}
    return data | own | {"environ": changed}


def failure_of(name: str, error: BaseException, short: bool = False) -> WorkerFailed:
    """Returns a worker's failure for an exception, with a traceback unless the message suffices.

    `short` leaves out this package's frames.
    """
    if isinstance(error, Diverged | Deadlocked):
        return WorkerFailed(name, "diverged" if isinstance(error, Diverged) else "deadlock", str(error))
    if isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is not None:
        return WorkerFailed(name, "worker", str(error))
    users = short_traceback(error) if short else None
    if users == "" and isinstance(error, EnvironmentFailed):  # the environment returned a value that was refused
        return WorkerFailed(name, "environment", str(error))
    said = f"(without marlcore's own frames)\n{users}" if users else "".join(traceback.format_exception(error))
    if "__main__" in str(error) and re.search("pickle|get attribute", str(error)):
        said = f"{said.rstrip()}\n{OF_MAIN}"
    text = said.encode(errors="backslashreplace")  # a lone surrogate has no UTF-8
    reason = "environment" if isinstance(error, EnvironmentFailed) else "worker"
    return WorkerFailed(name, reason, text[-TEXT_LIMIT:].decode(errors="ignore"))


def short_traceback(error: BaseException) -> str | None:
    """Returns the traceback without the package's frames, except for frames that called other code.

    Returns None if no frame would be left out, "" if all would be.
    """
    whole = TracebackException.from_exception(error)
    stacks = [(part, _foreign(part.stack)) for part in _chain(whole)]
    if not any(foreign for _, foreign in stacks):
        return ""
    if all(len(foreign) == len(part.stack) for part, foreign in stacks):
        return None
    for part, foreign in stacks:
        part.stack = StackSummary.from_list(foreign) if foreign else None  # type: ignore[assignment]  # no heading
    return "".join(whole.format())


def _chain(part: TracebackException | None) -> Iterator[TracebackException]:
    if part is not None:
        yield part
        for earlier in (part.__cause__, part.__context__, *(getattr(part, "exceptions", None) or ())):
            yield from _chain(earlier)


def _foreign(stack: StackSummary) -> list[FrameSummary]:
    """Returns the frames of other code, and this package's frames that called them."""
    foreign = [not frame.filename.startswith(PACKAGE) for frame in stack]
    after = [*foreign[1:], False]
    return [frame for frame, *keeps in zip(stack, foreign, after, strict=True) if any(keeps)]


def enter(surroundings: dict[str, Any]) -> None:
    """Applies the parent's surroundings (path, arguments, environment) to this process, and names it in `ps`."""
    spawn.prepare(surroundings)
    for key, value in surroundings["environ"].items():
        os.environ.pop(key, None)
        if value is not None:
            os.environ[key] = value
    show_title(surroundings["name"])


def leave_if_forked(worker: int) -> None:
    """Ends this process at once, without cleanup, unless its process id is `worker`.

    An environment may fork. A fork that returns from the environment's code must not report or close anything in the
    worker's name.
    """
    if os.getpid() == worker:
        return
    error = sys.exc_info()[1]
    if error is None or (isinstance(error, SystemExit) and not error.code):
        os._exit(0)
    if not isinstance(error, SystemExit):
        sys.excepthook(*sys.exc_info())
    os._exit(1)


def message_of(name: str, act: Callable[[], bytes]) -> bytes:
    """Returns the message for `Child.receive`: the result of `act`, or its failure."""
    pid = os.getpid()
    try:
        message = _DONE + act()
        leave_if_forked(pid)
    except BaseException as error:
        leave_if_forked(pid)
        if log.hasHandlers():  # otherwise only the parent logs the error
            log.error("%s failed:\n%s", name, traceback.format_exc())
        message = _FAILED + pickle.dumps(failure_of(name, error, short=has_log_file()))
    return message


def _work(
    connection: Connection, surroundings: dict[str, Any], prepare: Callable[[], None] | None, task: bytes
) -> None:
    def work() -> bytes:
        enter(surroundings)
        if prepare is not None:
            prepare()
        pickle.loads(task)()
        return b""

    message = message_of(surroundings["name"], work)
    connection.send_bytes(message)  # if this fails, the parent uses the exit status
    logging.shutdown()
    leave(int(message.startswith(_FAILED)))
