"""Runs the fork server in its own process, and begins and ends its forks.

The server runs no user code before a fork, has no Python threads and never initialises a GPU, so a fork starts clean.
If the server is a fork of the parent, it has the parent's state instead; see `is_safe_to_fork`.
"""

import ctypes
import errno
import gc
import multiprocessing
import os
import pickle
import select
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

import numpy as np

from ..errors import suppress_failed_calls
from .signals import outlive_signals

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ARG_START = 45  # index among the fields of /proc/self/stat behind the command's name; the next field is its end
FORK = b"fork"
NUMBER = struct.Struct("=q")


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies, even while this process is stopped."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the prctl
        os._exit(1)


def show_title(name: str) -> None:
    """Makes `ps aux` show this process as "marlcore NAME", and `ps` show it as NAME, cut to 15 bytes.

    The kernel shows the command line from this process's memory. This function writes there through /proc/self/mem, so
    a wrong address is an error, never a signal. A last byte that is not 0 tells the kernel that the line is a title.
    """
    title = name.encode(errors="replace")
    with suppress_failed_calls():  # /proc is not mounted, or not the kernel's
        Path("/proc/self/comm").write_bytes(title[:15])
        fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
        start, end = int(fields[ARG_START]), int(fields[ARG_START + 1])
        line = (b"marlcore " + title)[: end - start - 2].ljust(end - start - 1, b"\0") + b" "
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            os.pwrite(memory.fileno(), line, start)


def readable(seconds: float | None, *fds: int) -> set[int]:
    """Returns the descriptors that can be read or whose other end is closed.

    Waits up to `seconds` for the first of them; None: no limit.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return {fd for fd, _ in poll.poll(None if seconds is None else seconds * 1000)}


def receive(channel: socket.socket, nbytes: int, count: int) -> tuple[bytes, list[int]]:
    """Receives a message and its descriptors, which programs started from here do not inherit."""
    message, fds, _, _ = socket.recv_fds(channel, nbytes, count)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds


def serve(parent: int, channels: Sequence[int], preload: Sequence[str], early: Sequence[str] = ()) -> None:
    """Serves the first channel after importing all modules; a fork that imported only `early` serves the second."""
    end_with_parent(parent)
    show_title("fork server")
    pidfd, (channel, *others) = os.pidfd_open(parent), channels
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, a child's exit status is lost
    for module in early:
        import_module(module)
    gc.freeze()  # a collection would write to shared copy-on-write pages
    for other in others:
        server = os.getpid()
        if fork() == 0:
            os.close(channel)
            os.close(pidfd)
            serve(server, [other], ())
        os.close(other)
    for module in preload:
        import_module(module)
    gc.freeze()
    _Server(socket.socket(fileno=channel), pidfd).run()


class _Server:
    def __init__(self, channel: socket.socket, parent: int) -> None:
        self._channel = channel
        self._parent = parent
        self._children: dict[int, tuple[int, int]] = {}  # pidfd: (pid, pipe for its exit status)

    def run(self) -> None:
        self._answer(0)
        while True:
            for fd in readable(None, self._parent, self._channel.fileno(), *self._children):
                if fd == self._parent:
                    os._exit(0)
                if fd == self._channel.fileno():
                    self._fork()
                else:
                    self._reap(fd)

    def _answer(self, number: int, *fds: int) -> None:
        """Sends a fork's pid, or a negative errno; the first answer is 0 and means that the server is ready."""
        socket.send_fds(self._channel, [NUMBER.pack(number)], fds)

    def _fork(self) -> None:
        try:
            request, fds = receive(self._channel, len(FORK), 4)
        except ConnectionResetError:  # the parent never read that this server is ready
            os._exit(0)
        if not request:  # the parent has closed its end
            os._exit(0)
        try:
            if len(fds) < 4:
                raise OSError(errno.EMFILE, "descriptors were lost")
            self._start(*fds)
        except OSError as error:
            self._answer(-(error.errno or errno.EAGAIN))
        for fd in fds:
            os.close(fd)

    def _start(self, task: int, report: int, status: int, tracker: int) -> None:
        """Forks. Raises OSError if the system starts no process or has no descriptor for the process's pidfd."""
        server, status_copy = os.getpid(), os.dup(status)
        try:
            pid = fork()
            if pid == 0:
                try:
                    end_with_parent(server)
                    self._forget(status, status_copy)
                    _run(task, report, tracker)
                finally:
                    os._exit(1)  # the child must never continue as a second server
            pidfd = open_child(pid)
        except OSError:
            os.close(status_copy)
            raise
        self._children[pidfd] = pid, status_copy
        self._answer(pid, pidfd)

    def _forget(self, *fds: int) -> None:
        self._channel.close()
        for fd in (self._parent, *self._children, *(status for _, status in self._children.values()), *fds):
            os.close(fd)

    def _reap(self, pidfd: int) -> None:
        pid, status = self._children.pop(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.close(pidfd)
        with suppress(BrokenPipeError):  # the parent no longer reads it
            os.write(status, NUMBER.pack(code))
        os.close(status)


def fork() -> int:
    """Calls `os.fork` without Python's warning about threads; `is_safe_to_fork` says which threads are harmless."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def open_child(pid: int) -> int:
    """Opens a pidfd of a forked process. If no descriptor is free, kills the process and raises OSError."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _run(task: int, report: int, tracker: int) -> None:
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
    """Exits at once and lets the kernel close everything, since an orderly teardown of torch would take a second."""
    for child in multiprocessing.active_children():
        if child.daemon:  # an ordinary exit would terminate it too
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(code)
