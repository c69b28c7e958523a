"""Creating a segment's file: it stays nameless until it is whole, and is allocated before anything is written."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import MarlcoreError
from .files import File
from .header import CHECKSUM, Header
from .locks import SEGMENT_LOCK
from .native import try_lock
from .space import SHM_DIR, free_bytes, full, noticing_full
from .survey import PREFIX

SEALED = 1 << 32  # beside a checksum of 32 bits: it applies
_BLOCK = 1 << 20

Put = Callable[[int, NDArray[np.uint8]], None]  # put(offset, data) writes bytes of a body


def lasting(target: Path) -> Path:
    """The path of a file that must persist. Raises ValueError: `sweep` would remove the file."""
    if target.parent == SHM_DIR and target.name.startswith(PREFIX):
        raise ValueError(
            f"path: expected a name without {PREFIX!r} in {SHM_DIR}, where unused segments are removed, got {target}"
        )
    return target


def open_nameless(target: Path, nbytes: int, name: Path | None = None) -> File:
    """A file of `nbytes` allocated bytes in target's directory; `name`, by default target, is its later name."""
    return _open(File(name or target), target, nbytes, _open_tmpfile)


def open_unlinked(target: Path, nbytes: int) -> File:
    """A file of `nbytes` allocated bytes without a name; where the file system needs one, it is target for a moment."""
    return _open(File(), target, nbytes, _open_then_unlink)


def _open_tmpfile(file: File, target: Path) -> None:
    file.open(target.parent, os.O_TMPFILE | os.O_RDWR)


def _open_then_unlink(file: File, target: Path) -> None:
    try:
        _open_tmpfile(file, target)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # as older overlay file systems
            raise
        file.open(target, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR)
        target.unlink()


def _open(file: File, target: Path, nbytes: int, open_file: Callable[[File, Path], None]) -> File:
    if not target.parent.is_dir():
        raise ValueError(f"path: expected a file in a directory that exists, got {target}")
    free = free_bytes(target.parent)
    if nbytes > free:
        raise full(target.parent, nbytes, free)
    try:
        open_file(file, target)
        with noticing_full(target.parent, nbytes):
            os.posix_fallocate(file.fd, 0, nbytes)
        return file
    except BaseException:
        file.close()
        raise


def write_header_and_body(fd: int, header: Header, fill: Callable[[Put], None] | None) -> None:
    """Writes the header, then the part of the body that `fill` writes."""
    _put(fd, 0, 0, np.frombuffer(header.raw, np.uint8))
    if fill is not None:
        fill(partial(_put, fd, header.header_bytes))


def write_checksum(fd: int, header: Header) -> None:
    """Writes the checksum of a whole body behind it; see `Segment.verify`."""
    begin, end = header.header_bytes, header.header_bytes + header.description[CHECKSUM]
    block, crc = bytearray(_BLOCK), 0
    while begin < end:
        n = os.preadv(fd, [memoryview(block)[: end - begin]], begin)
        crc = zlib.crc32(memoryview(block)[:n], crc)
        begin += n
    _put(fd, end, 0, np.array([crc | SEALED], np.uint64).view(np.uint8))


def _put(fd: int, body: int, offset: int, data: NDArray[np.uint8]) -> None:
    """Writes all of `data` without a copy; one system call writes at most 2 GiB."""
    left, at = data.data, body + offset
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written


def hold(file: File, target: Path) -> None:
    """Takes the shared lock of a nameless file. Raises MarlcoreError: a process opened and locked it through /proc."""
    if not try_lock(file.fd, SEGMENT_LOCK, exclusive=False):
        raise MarlcoreError(f"{target}: another process has locked the segment before it has a name")


def give_name(file: File, target: Path) -> None:
    try:
        file.link()
    except FileExistsError:
        raise ValueError(f"path: expected a file that does not exist yet, got {target}") from None
