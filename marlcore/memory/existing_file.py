"""Opening a segment's file that is there: whose it is, whether it is being removed, whether each page has memory."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import time
from pathlib import Path

from ..errors import SegmentCorrupt, SegmentNotFound, SharedMemoryFull
from .files import File, same_file, too_many_files
from .locks import SEGMENT_LOCK
from .native import try_lock
from .space import SHM_DIR, free_bytes, full, noticing_full

__all__ = ["check_allocated", "map_file", "open_named"]

SWEEP_S = 1.0  # far longer than a sweep holds the lock of a file


def open_named(path: Path, writable: bool) -> File:
    """Opens a segment's file and holds its shared lock; SegmentNotFound when it was removed meanwhile.

    A lock that is refused says that someone sweeps just now: that may be the end of the file, or only of another name
    that it had, so the name is what decides.
    """
    deadline = time.monotonic() + SWEEP_S
    while True:
        file = _open_existing(path, writable)
        try:
            locked = try_lock(file.fd, SEGMENT_LOCK, exclusive=False)
            if locked and same_file(file.fd, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # a later save took its name between open and lock, or nothing has it any more
        if not locked:
            if time.monotonic() > deadline:
                raise SegmentNotFound(f"{path}: another process has locked the segment to remove it")
            time.sleep(SWEEP_S / 1000)


def _open_existing(path: Path, writable: bool) -> File:
    """Opens a file that may be a segment: a regular one of this user alone."""
    file = File()
    try:
        file.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(file.fd)
        if not stat.S_ISREG(status.st_mode):
            raise SegmentCorrupt(f"{path}: expected a regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise SegmentCorrupt(f"{path}: expected a file of this user alone, mode 0600")
        return file
    except (FileNotFoundError, NotADirectoryError):
        raise SegmentNotFound(f"{path}: no such segment") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM):
            raise
        raise SegmentCorrupt(f"{path}: expected a segment, got {error.strerror}") from None
    except BaseException:
        file.close()
        raise


def check_allocated(file: File, path: Path, writable: bool) -> None:
    """Sees to it that each page of a file has memory or disk of its own: the kernel ends a process that touches one
    for which there is none.

    Neither number alone says where holes are. Compressed files have fewer blocks than bytes and no hole; some file
    systems count their own index blocks too, which hides holes; and SEEK_HOLE takes for a hole what is allocated
    but was never written, as all of a new segment. Only in /dev/shm are blocks exact.
    """
    status = os.fstat(file.fd)
    missing = status.st_size - 512 * status.st_blocks
    if missing <= 0 and (not writable or status.st_dev == os.stat(SHM_DIR).st_dev):
        return
    if os.lseek(file.fd, 0, os.SEEK_HOLE) == status.st_size:
        return
    if not writable:
        raise SegmentCorrupt(f"{path}: expected a file without holes, got one of {missing} bytes; "
                             "copy it with `cp --sparse=never`")  # fmt: skip
    free = free_bytes(path.parent)
    if missing > free:
        raise full(path.parent, missing, free)
    with noticing_full(path.parent, missing):
        _allocate(file, status.st_size, path)


def _allocate(file: File, nbytes: int, path: Path) -> None:
    """Fills the holes of a file that others may be writing to: never by writing. Raises SegmentCorrupt: it cannot."""
    try:
        file.allocate(nbytes)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        raise SegmentCorrupt(f"{path}: expected a file without holes, got one on a file system that cannot fill them; "
                             "copy it with `cp --sparse=never`") from None  # fmt: skip


def map_file(fd: int, path: Path, nbytes: int, writable: bool) -> mmap.mmap:
    """Raises SharedMemoryFull: no address space. MarlcoreError: no descriptor for the mapping's own copy."""
    try:
        return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise SharedMemoryFull(
                f"{path}: {nbytes} bytes of address space asked for, less free; raise `ulimit -v`"
            ) from None
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise too_many_files(path) from None
        raise
