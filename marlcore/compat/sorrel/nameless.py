"""Pipes and files of the parent that have no name, so that the kernel removes them however its processes end.

A worker opens them through /proc, by the parent's process id and descriptor.
"""

from __future__ import annotations

import errno
import os
import pickle
import struct
import tempfile
from collections.abc import Iterator
from typing import Any

import cloudpickle

from ...errors import suppress_failed_calls

_LENGTH = struct.Struct("=q")
_PIECE = 1 << 20  # bytes that one read takes


def _path(fd: int) -> str:
    return f"/proc/{os.getpid()}/fd/{fd}"


class Mailbox:
    """The parent's end of one process's messages, in the order of sending.

    Attributes:
        path: for the process's `Sender`.
    """

    def __init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        self.path = _path(self._write)
        self._came = bytearray()

    def renew(self) -> None:
        """Drops what came, for the process's successor."""
        self.close()
        self._open()

    def messages(self) -> Iterator[Any]:
        """The whole messages that have come; never waits."""
        while True:
            piece = b""
            with suppress_failed_calls(errno.EAGAIN):
                piece = os.read(self._read, _PIECE)
            if not piece:
                break
            self._came += piece
        while len(self._came) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._came)[0]
            if len(self._came) < end:
                break  # the rest comes later, or never if the sender was killed
            message = pickle.loads(self._came[_LENGTH.size : end])
            del self._came[:end]
            yield message

    def close(self) -> None:
        for fd in (self._read, self._write):
            if fd >= 0:
                os.close(fd)
        self._read = self._write = -1


class Sender:
    """A worker's end of a mailbox; it waits only while the parent leaves 64 KiB or more unread."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY)

    def send(self, *message: Any) -> None:
        data = cloudpickle.dumps(message)
        rest = memoryview(_LENGTH.pack(len(data)) + data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


class Spare:
    """Two files, of which a writer fills one while the other is whole; the writer tells readers which by its own means.

    Attributes:
        paths: of the two, while this object lives.
    """

    def __init__(self) -> None:
        self._fds = [_open_nameless() for _ in range(2)]
        self.paths = tuple(_path(fd) for fd in self._fds)

    def close(self) -> None:
        while self._fds:
            os.close(self._fds.pop())


def _open_nameless() -> int:
    fd, name = tempfile.mkstemp(prefix="marlcore-")
    os.unlink(name)
    return fd
