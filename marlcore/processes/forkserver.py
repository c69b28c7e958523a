"""A fork server: a process that has imported the workers' modules, so that a worker starts in milliseconds.

It runs no user code before a fork, has no Python threads and never initialises a GPU, so a fork starts clean. If the
parent dies, the kernel kills the fork server and every worker: see pdeathsig.py.
"""

from __future__ import annotations

import errno
import gc
import logging
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib import import_module
from multiprocessing import resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_executable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import MarlcoreError, suppress_failed_calls
from .pdeathsig import end_with_parent, start_child
from .signals import STOPPING, outlive_signals
from .title import show_title

START_S = 120.0  # limit for the imports
REPLY_S = 10.0  # limit for an answer; a server that exceeds it counts as stopped and is killed
STARTS = 4  # of the server, before the error after repeated deaths
BACKOFF_S = 0.2  # before the second start; doubled before each further start
KILL_S = 10.0  # longer than the kernel takes to end a killed process and free its memory, unless it is stuck
LOOK_S = 0.05
_CLOSED = (errno.EPIPE, errno.ECONNRESET)  # of a call on a channel whose other end is gone
log = logging.getLogger(__name__)

_NUMBER = struct.Struct("=q")
_FORK = b"fork"
_PROGRAM = """
import sys
sys.path[:] = sys.argv[4:]
from marlcore.processes.forkserver import serve
serve(*map(int, sys.argv[1:3]), sys.argv[3].split())
"""


class _Gone(Exception):
    """The server died, or does not answer."""


class Forked(NamedTuple):
    """A forked process.

    Attributes:
        pid, pidfd: of the process.
        status: a pipe with its exit status once known, in the form of `subprocess.Popen.returncode`; end of file
            without a status means that the server is gone.
    """

    pid: int
    pidfd: int
    status: int


class ForkServer:
    """Starts the server on first use, and again after it died.

    Args:
        preload: modules that the server imports before it forks.
        hurry: returns True to give up the wait for a server that is still starting.
    """

    def __init__(self, preload: Sequence[str] = (), hurry: Callable[[], bool] = lambda: False) -> None:
        self._preload = preload
        self._hurry = hurry
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._answered = False  # whether the server said that it is ready

    def begin(self) -> None:
        """Starts the server without waiting until it is ready, unless it was started; `fork` waits for that."""
        if self._channel is None:
            self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = start_child(partial(start_program, theirs.fileno(), self._preload))

    @property
    def ready(self) -> bool:
        """Whether the server was started, and `fork` need not wait for it."""
        return self._answered or (self._channel is not None and readable(self._channel.fileno(), 0.0))

    def fork(self, report: int, function: Callable[..., None], *args: Any) -> Forked:
        """Runs function(connection, *args) in a new process; `report` is the descriptor of its connection.

        The function and its arguments must be picklable, and importable without `__main__`.

        Raises:
            OSError: the system starts no process.
            InterruptedError: `hurry` returned True.
            MarlcoreError: the server died at each start.
        """
        with ExitStack() as at_end, ExitStack() as unless_forked:
            task = os.memfd_create("marlcore-task")
            at_end.callback(os.close, task)
            ended, status = os.pipe()
            at_end.callback(os.close, status)
            unless_forked.callback(os.close, ended)
            with os.fdopen(os.dup(task), "wb") as file:
                pickle.dump((function, args), file)
            # multiprocessing's resources in a worker get the parent's tracker, as if the worker were spawned.
            tracker = resource_tracker.getfd()
            assert tracker is not None
            number, fds = self._ask([task, report, status, tracker])
            if number < 0:
                raise OSError(-number, os.strerror(-number))
            if not fds:
                raise OSError(errno.EMFILE, "no descriptor is left for a worker's process")
            unless_forked.pop_all()
            return Forked(number, fds[0], ended)

    def _ask(self, fds: list[int]) -> tuple[int, list[int]]:
        """The server's answer; restarts the server if it is gone."""
        for failed in range(1, STARTS + 1):
            try:
                channel = self._start()
                socket.send_fds(channel, [_FORK], fds)
                return self._answer(channel, REPLY_S)
            except BaseException as error:
                self.close()  # its answer would reach the wrong request
                if not isinstance(error, _Gone) and getattr(error, "errno", None) not in _CLOSED:
                    raise
                reason = error
            if failed < STARTS:
                self._pause(BACKOFF_S * 2 ** (failed - 1))
        raise MarlcoreError(f"the process that forks workers died {STARTS} times, the last time: {reason}")

    def _pause(self, seconds: float) -> None:
        """Sleeps before a restart. Raises InterruptedError: `hurry` returned True."""
        for _ in range(round(seconds / LOOK_S)):
            if self._hurry():
                raise InterruptedError(errno.EINTR, "told to stop before the process that forks workers was restarted")
            time.sleep(LOOK_S)

    def _answer(
        self, channel: socket.socket, seconds: float, hurry: Callable[[], bool] = lambda: False
    ) -> tuple[int, list[int]]:
        """Reads the server's answer. Raises: _Gone; InterruptedError: `hurry` returned True."""
        for _ in range(round(seconds / LOOK_S)):  # counts looks, since the clock runs on while this process is stopped
            if readable(channel.fileno(), LOOK_S):
                answer, fds = _receive(channel, _NUMBER.size, 1)
                if not answer:
                    raise _Gone("it ended")
                return _NUMBER.unpack(answer)[0], fds
            if hurry():
                raise InterruptedError(errno.EINTR, "told to stop while the process that forks workers was starting")
        raise _Gone(f"it did not answer within {seconds:g} s")

    def _start(self) -> socket.socket:
        """The channel of a server that is ready."""
        self.begin()
        assert self._channel is not None
        if not self._answered:
            self._answer(self._channel, START_S, self._hurry)
            self._answered = True
        return self._channel

    @property
    def pid(self) -> int | None:
        """The server's process id, if it was started."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """Kills the server; the kernel then kills every process it forked."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                log.error("process %d did not end within %g s of SIGKILL and is left alone", self._process.pid, KILL_S)
        self._channel = self._process = None
        self._answered = False


def start_program(channel: int, preload: Sequence[str]) -> subprocess.Popen[bytes]:
    # The server never sees a signal sent to the whole process group; its forks see none before they are ready for it.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen(
            [get_executable(), *flags, "-c", _PROGRAM]
            + [str(channel), str(os.getpid()), " ".join(preload)]
            + [path for path in sys.path if isinstance(path, str)],
            stdin=subprocess.DEVNULL,
            # A file opened there would otherwise get the number of a closed stream.
            stdout=None if _is_inherited(1) else subprocess.DEVNULL,
            stderr=None if _is_inherited(2) else subprocess.DEVNULL,
            pass_fds=[channel],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _is_inherited(fd: int) -> bool:
    with suppress_failed_calls(errno.EBADF):
        return os.get_inheritable(fd)
    return False


def _receive(channel: socket.socket, nbytes: int, count: int) -> tuple[bytes, list[int]]:
    """A message and its descriptors, which programs started from here do not inherit."""
    message, fds, _, _ = socket.recv_fds(channel, nbytes, count)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds


def readable(fd: int, seconds: float | None) -> bool:
    """Whether `fd` is readable, or its other end closed, within `seconds`; None waits for ever."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def read_status(pipe: int) -> int | None:
    """Reads a process's exit status from its pipe; None if the server died before it wrote one."""
    data = os.read(pipe, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if data else None


def serve(channel: int, parent: int, preload: list[str]) -> None:
    """Runs the server."""
    end_with_parent(parent)
    show_title("fork server")
    pidfd = os.pidfd_open(parent)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, a child's exit status is lost
    for module in preload:
        import_module(module)
    gc.freeze()  # a collection would write to shared copy-on-write pages
    server = _Server(socket.socket(fileno=channel), pidfd)
    server.answer(0)
    while True:
        server.wait()


class _Server:
    def __init__(self, channel: socket.socket, parent: int) -> None:
        self._channel = channel
        self._parent = parent
        self._children: dict[int, tuple[int, int]] = {}  # pidfd: (pid, pipe for its exit status)
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(parent, select.POLLIN)

    def answer(self, number: int, *fds: int) -> None:
        """Sends a fork's pid, or a negative errno; the first answer is 0 and means that the server is ready."""
        socket.send_fds(self._channel, [_NUMBER.pack(number)], fds)

    def wait(self) -> None:
        """Sleeps until there is work, and does it."""
        for fd, _ in self._poll.poll():
            if fd == self._parent:
                os._exit(0)
            if fd == self._channel.fileno():
                self._fork()
            else:
                self._reap(fd)

    def _fork(self) -> None:
        request, fds = _receive(self._channel, len(_FORK), 4)
        if not request:  # the parent has closed its end
            os._exit(0)
        try:
            if len(fds) < 4:
                raise OSError(errno.EMFILE, "descriptors were lost")
            self._start(*fds)
        except OSError as error:
            self.answer(-(error.errno or errno.EAGAIN))
        for fd in fds:
            os.close(fd)

    def _start(self, task: int, report: int, status: int, tracker: int) -> None:
        """Forks. Raises OSError: the system starts no process, or has no descriptor for its pidfd."""
        server, kept = os.getpid(), os.dup(status)
        try:
            with warnings.catch_warnings():  # it warns of threads; those of the array libraries handle forks
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                try:
                    end_with_parent(server)
                    self._forget(status, kept)
                    _run(task, report, tracker)
                finally:
                    os._exit(1)  # the child must never continue as a second server
            pidfd = _open_child(pid)
        except OSError:
            os.close(kept)
            raise
        self._children[pidfd] = pid, kept
        self._poll.register(pidfd, select.POLLIN)
        self.answer(pid, pidfd)

    def _forget(self, *fds: int) -> None:
        """In the child: closes the server's descriptors, and these."""
        self._channel.close()
        os.close(self._parent)
        for pidfd, (_, status) in self._children.items():
            fds += (pidfd, status)
        for fd in fds:
            os.close(fd)

    def _reap(self, pidfd: int) -> None:
        pid, status = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(pidfd)
        with suppress(BrokenPipeError):  # the parent no longer reads it
            os.write(status, _NUMBER.pack(code))
        os.close(status)


def _open_child(pid: int) -> int:
    """A pidfd of a forked process. Raises OSError: none is available; the process was killed."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _run(task: int, report: int, tracker: int) -> None:
    """Runs a forked process."""
    code = 1
    try:
        outlive_signals()
        np.random.seed()  # as in a fresh process; Python's `random` reseeds itself
        resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
        with os.fdopen(task, "rb") as file:
            file.seek(0)
            function, args = pickle.load(file)
        connection = Connection(report)
        os.register_at_fork(after_in_child=connection.close)  # else the parent would not see the end of this process
        function(connection, *args)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    leave(code)


def leave(code: int) -> NoReturn:
    """Exits at once; the kernel closes everything, and an orderly teardown of torch would take a second."""
    for child in multiprocessing.active_children():
        if child.daemon:  # an ordinary exit would terminate it too
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(code)
