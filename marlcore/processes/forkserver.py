"""A process that has imported what workers need, and forks itself into them: a start takes milliseconds, not seconds.

It runs nobody's code before it forks, has no threads of Python and never asks for a GPU, so that what it forks is as
good as new. The kernel ends it with the process that started it, and those that it forked with it.
"""

from __future__ import annotations

import ctypes
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
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import resource_tracker, util
from multiprocessing.connection import Connection
from multiprocessing.spawn import get_executable
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import MarlcoreError
from .signals import STOPPING, outlive_signals

__all__ = ["ForkServer", "Forked", "end_with_parent", "leave", "read_status", "readable", "serve"]

PR_SET_PDEATHSIG = 1  # linux/prctl.h
START_S = 120.0  # at most, for the imports
REPLY_S = 10.0  # at most, without which the server is taken for stopped, and ended
STARTS = 4  # of servers one after another, each of which died
BACKOFF_S = 0.2  # before the second of them, and twice as long before each further one
KILL_S = 10.0  # more than the kernel takes to end a killed process and free its memory, unless it cannot
LOOK_S = 0.05
log = logging.getLogger(__name__)

_NUMBER = struct.Struct("=q")
_FORK = b"fork"
_PROGRAM = """
import sys
sys.path[:] = sys.argv[5:]
from marlcore.processes.forkserver import serve
serve(*map(int, sys.argv[1:4]), sys.argv[4].split())
"""


class _Gone(Exception):
    """The server ended, or does not answer."""


class Forked(NamedTuple):
    """A process that was forked.

    Attributes:
        pid, pidfd: its own.
        status: a pipe that says how it ended, once that is known, as a number of `subprocess.Popen.returncode`'s
            kind; it ends without one when the server is gone.
    """

    pid: int
    pidfd: int
    status: int


class ForkServer:
    """Starts the server when it is first needed, and again when it died.

    Args:
        preload: modules that the server imports before it forks.
        hurry: whether to give up waiting for a server that is still starting.
    """

    def __init__(self, preload: Sequence[str] = (), hurry: Callable[[], bool] = lambda: False) -> None:
        self._preload = preload
        self._hurry = hurry
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None

    def fork(self, report: int, function: Callable[..., None], *args: Any) -> Forked:
        """Has function(connection, *args) run in a new process, with `report` as the connection's descriptor.

        Both must be picklable, and what they need of `__main__` they import themselves.

        Raises:
            OSError: the system starts no process.
            InterruptedError: whoever waits is in a hurry.
            MarlcoreError: the server died whenever it was started.
        """
        task = os.memfd_create("marlcore-task")
        ended, status = os.pipe()
        try:
            with os.fdopen(os.dup(task), "wb") as file:
                pickle.dump((function, args), file)
            # What a worker shares by multiprocessing's means is tracked where its parent's is, as if it were spawned.
            tracker = resource_tracker.getfd()
            assert tracker is not None
            number, fds = self._ask([task, report, status, tracker])
            if number < 0:
                raise OSError(-number, os.strerror(-number))
            if not fds:
                raise OSError(errno.EMFILE, "no descriptor is left for a worker's process")
            return Forked(number, fds[0], ended)
        except BaseException:
            os.close(ended)
            raise
        finally:
            os.close(task)
            os.close(status)

    def _ask(self, fds: list[int]) -> tuple[int, list[int]]:
        """What the server answers, from a new server if the old one is gone."""
        for failed in range(1, STARTS + 1):
            try:
                channel = self._channel or self._start()
                socket.send_fds(channel, [_FORK], fds)
                return self._answer(channel, REPLY_S)
            except (_Gone, ConnectionError) as error:
                self.close()
                reason = error
            except BaseException:
                self.close()  # what it would answer now is nobody's
                raise
            if failed < STARTS:
                self._pause(BACKOFF_S * 2 ** (failed - 1))
        raise MarlcoreError(f"the process that forks workers died {STARTS} times, the last time: {reason}")

    def _pause(self, seconds: float) -> None:
        """Raises InterruptedError: whoever waits is in a hurry."""
        for _ in range(round(seconds / LOOK_S)):
            if self._hurry():
                raise InterruptedError("told to stop while the process that forks workers was to be started again")
            time.sleep(LOOK_S)

    def _answer(
        self, channel: socket.socket, seconds: float, hurry: Callable[[], bool] = lambda: False
    ) -> tuple[int, list[int]]:
        """Raises: _Gone, or InterruptedError: whoever waits is in a hurry."""
        for _ in range(round(seconds / LOOK_S)):  # not by the clock: this process may have been stopped itself
            if readable(channel.fileno(), LOOK_S):
                answer, fds = _receive(channel, _NUMBER.size, 1)
                if not answer:
                    raise _Gone("it ended")
                return _NUMBER.unpack(answer)[0], fds
            if hurry():
                raise InterruptedError("told to stop while the process that forks workers was starting")
        raise _Gone(f"it did not answer within {seconds:g} s")

    def _start(self) -> socket.socket:
        """Starts the server, and waits until it can be asked."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_program(theirs.fileno(), self._preload)
        self._answer(self._channel, START_S, self._hurry)
        return self._channel

    @property
    def pid(self) -> int | None:
        """The server's, if it was started."""
        return self._process.pid if self._process else None

    def close(self) -> None:
        """Ends the server, and by that whatever it forked."""
        if self._channel is not None:
            self._channel.close()
        if self._process is not None:
            self._process.kill()
            try:
                self._process.wait(KILL_S)
            except subprocess.TimeoutExpired:
                log.error("process %d did not end within %g s of SIGKILL and is left alone", self._process.pid, KILL_S)
        self._channel = self._process = None


def start_program(channel: int, preload: Sequence[str]) -> subprocess.Popen[bytes]:
    # The server never sees a signal that reaches the whole process group, and what it forks does not before it is
    # ready for it.
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    is_main = threading.current_thread() is threading.main_thread()
    flags: list[str] = util._args_from_interpreter_flags()  # type: ignore[attr-defined]
    try:
        return subprocess.Popen(
            [get_executable(), *flags, "-c", _PROGRAM]
            + [str(channel), str(os.getpid()), str(int(is_main)), " ".join(preload)]
            + [path for path in sys.path if isinstance(path, str)],
            stdin=subprocess.DEVNULL,
            # The numbers of streams that were closed would be given to what is opened there.
            stdout=None if _is_inherited(1) else subprocess.DEVNULL,
            stderr=None if _is_inherited(2) else subprocess.DEVNULL,
            pass_fds=[channel],
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _is_inherited(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def _receive(channel: socket.socket, nbytes: int, count: int) -> tuple[bytes, list[int]]:
    """A message and the descriptors that came with it, which no program that is run from here inherits."""
    message, fds, _, _ = socket.recv_fds(channel, nbytes, count)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds


def readable(fd: int, seconds: float | None) -> bool:
    """Whether something can be read there, or its other end is closed; after waiting for it for so long."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if seconds is None else seconds * 1000))


def read_status(pipe: int) -> int | None:
    """How a process ended, of the pipe that says so; None when the server was gone before it could say."""
    data = os.read(pipe, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if data else None


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent is gone, in whatever state it is then, and however it died."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def serve(channel: int, parent: int, started_by_main_thread: int, preload: list[str]) -> None:
    """The server's life."""
    pidfd = os.pidfd_open(parent)
    if started_by_main_thread:
        end_with_parent(parent)  # for the kernel that is the end of the thread
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # where it is ignored, nobody would learn how a child ended
    for module in preload:
        import_module(module)
    gc.freeze()  # a collection would write to pages that all processes share
    server = _Server(socket.socket(fileno=channel), pidfd)
    server.answer(0)
    while True:
        server.wait()


class _Server:
    def __init__(self, channel: socket.socket, parent: int) -> None:
        self._channel = channel
        self._parent = parent
        self._children: dict[int, tuple[int, int]] = {}  # by pidfd: the pid, and where its end is told
        self._poll = select.poll()
        self._poll.register(channel, select.POLLIN)
        self._poll.register(parent, select.POLLIN)

    def answer(self, number: int, *fds: int) -> None:
        """With the pid of what was forked, or an errno below 0; first of all with 0: it can be asked now."""
        socket.send_fds(self._channel, [_NUMBER.pack(number)], fds)

    def wait(self) -> None:
        """Until there is something to do, and does it."""
        for fd, _ in self._poll.poll():
            if fd == self._parent:
                os._exit(0)
            if fd == self._channel.fileno():
                self._fork()
            else:
                self._reap(fd)

    def _fork(self) -> None:
        request, fds = _receive(self._channel, len(_FORK), 4)
        if not request:  # whoever asked has closed its end
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
        """Raises OSError: the system starts no process, or gives no descriptor of it."""
        server, kept = os.getpid(), os.dup(status)
        try:
            with warnings.catch_warnings():  # of threads: those of a library for arrays, which are ready for it
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
            if pid == 0:
                try:
                    end_with_parent(server)
                    self._forget(status, kept)
                    _run(task, report, tracker)
                finally:
                    os._exit(1)  # whatever happens, it must not go on as the server
            pidfd = _open_child(pid)
        except OSError:
            os.close(kept)
            raise
        self._children[pidfd] = pid, kept
        self._poll.register(pidfd, select.POLLIN)
        self.answer(pid, pidfd)

    def _forget(self, *fds: int) -> None:
        """In what was forked: closes what is the server's, and these."""
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
        with suppress(BrokenPipeError):  # nobody asks any more
            os.write(status, _NUMBER.pack(code))
        os.close(status)


def _open_child(pid: int) -> int:
    """A pidfd of a process that was forked. Raises OSError: there is none to be had, and the process is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _run(task: int, report: int, tracker: int) -> None:
    """The life of a process that was forked."""
    code = 1
    try:
        outlive_signals()
        np.random.seed()  # as in a process of its own; Python's `random` does so by itself
        resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]
        with os.fdopen(task, "rb") as file:
            file.seek(0)
            function, args = pickle.load(file)
        function(Connection(report, readable=False), *args)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    leave(code)


def leave(code: int) -> NoReturn:
    """Ends this process at once: everything is closed, and taking torch down in order would cost a second."""
    for child in multiprocessing.active_children():
        if child.daemon:  # it would be ended at any other program's end too
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(code)
