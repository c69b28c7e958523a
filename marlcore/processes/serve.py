"""Runs the fork server in its own process, and begins and ends its forks.

The server runs no user code, has no Python threads and never initialises a GPU, so its forks start clean. A server that
is a fork of the parent has the parent's state instead; see `is_safe_to_fork`.
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
ARG_START = 45  # index of arg_start among the fields of /proc/self/stat after the command; arg_end follows
FORK = b"fork"
NUMBER = struct.Struct("=q")


def end_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when its parent dies, even while this process is stopped."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # the parent died before the prctl
        os._exit(1)


def show_title(name: str) -> None:
    """Makes `ps aux` show this process as "marlcore NAME", and `ps` show it as NAME, cut to 15 bytes.

    `ps aux` shows the arguments in this process's memory. They are overwritten through /proc/self/mem, so that a wrong
    address is an error instead of a signal. A last byte other than 0 tells the kernel that they are a title.
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
    """Receives a message and up to `count` descriptors, which programs started from this process do not inherit."""
    message, fds, _, _ = socket.recv_fds(channel, nbytes, count)
    for fd in fds:
        os.set_inheritable(fd, False)
    return message, fds


def serve(parent: int, channels: Sequence[int], preload: Sequence[str], early: Sequence[str] = ()) -> None:
    """Imports all modules, then serves the first channel; a fork that imports only `early` serves the second."""
    end_with_parent(parent)
    show_title("fork server")
    pidfd, (channel, *others) = os.pidfd_open(parent), channels
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it were ignored, exit statuses would be lost
    for module in early:
        import_module(module)
    gc.freeze()  # a collection would write to shared copy-on-write pages
    server, second = os.getpid(), 0
    for other in others:
        if (second := fork()) == 0:
            os.close(channel)
            os.close(pidfd)
            serve(server, [other], ())
        os.close(other)
    for module in preload:
        import_module(module)
    gc.freeze()
    _Server(socket.socket(fileno=channel), pidfd, second).run()


class _Server:
    def __init__(self, channel: socket.socket, parent: int, second: int) -> None:
        self._channel = channel
        self._parent, self._second = parent, second
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
        """Sends a fork's pid or a negative errno. The first answer is 0, and means that the server is ready."""
        try:
            socket.send_fds(self._channel, [NUMBER.pack(number)], fds)
        except BrokenPipeError:  # the parent has closed its end meanwhile
            self._end()

    def _fork(self) -> None:
        try:
            request, fds = receive(self._channel, len(FORK), 4)
        except ConnectionResetError:  # the parent never read that this server is ready
            self._end()
        if not request:  # the parent has closed its end
            self._end()
        try:
            if len(fds) < 4:
                raise OSError(errno.EMFILE, "descriptors were lost")
            self._start(*fds)
        except OSError as error:
            self._answer(-(error.errno or errno.EAGAIN))
        for fd in fds:
            os.close(fd)

    def _end(self) -> NoReturn:
        """Waits for the second server first, so that the CPU time of its forks counts as the parent's children's."""
        if self._second:
            os.kill(self._second, signal.SIGKILL)
            os.waitpid(self._second, 0)
        os._exit(0)

    def _start(self, task: int, report: int, status: int, tracker: int) -> None:
        """Forks a worker. Raises OSError if the system starts no process or no descriptor is free for its pidfd."""
        server, status_copy = os.getpid(), os.dup(status)
        try:
            pid = fork()
            if pid == 0:
                try:
                    end_with_parent(server)
                    self._forget(status, status_copy)
                    _run(task, report, tracker)
                finally:
                    os._exit(1)  # a child that returns would continue as a second server
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
        with suppress(BrokenPipeError):  # the parent has closed its end
            os.write(status, NUMBER.pack(code))
        os.close(status)


def fork() -> int:
    """Calls `os.fork` without Python's warning about threads; see `is_safe_to_fork`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def open_child(pid: int) -> int:
    """Opens a forked process's pidfd. If no descriptor is free, kills the process and raises OSError."""
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
        os.register_at_fork(after_in_child=connection.close)  # so that the parent sees the end of this process
        function(connection, *args)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    leave(code)


def leave(code: int) -> NoReturn:
    """Exits at once and lets the kernel close everything, since tearing down torch takes a second."""
    for child in multiprocessing.active_children():
        if child.daemon:  # an ordinary exit would terminate it, too
            child.terminate()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):
                stream.flush()
    os._exit(code)
