"""Opens an existing segment's file: checks its owner, whether it is being removed, and whether each page is backed."""

import errno
import os
import stat
import time
from pathlib import Path

from ..closing import ClosedAfterError
from ..errors import SegmentCorrupt, SegmentNotFound
from .files import File, is_descriptor, same_file
from .native import try_lock
from .space import SHM_DIR, free_bytes, full, noticing_full
from .survey import SEGMENT_LOCK

SWEEP_S = 1.0  # far longer than a sweep holds a file's lock
EXPECTED, ADVICE = "expected a file without holes", "copy it with `cp --sparse=never`"


def open_named(path: Path, writable: bool) -> File:
    """Opens a segment's file and takes its shared lock. Raises SegmentNotFound if the file is gone or being removed.

    Only a sweep takes the lock exclusively, to remove one name of the file. If `path` is another name of the file, the
    open is repeated until the sweep has released the lock.
    """
    deadline = time.monotonic() + SWEEP_S
    while True:
        file = _open_existing(path, writable)
        with ClosedAfterError(file):
            locked = try_lock(file.fd, SEGMENT_LOCK, exclusive=False)
            if locked and same_file(file.fd, path):
                return file
        file.close()  # between open and lock, a later save took the name, or the name was removed
        if not locked:
            if time.monotonic() > deadline:
                raise SegmentNotFound(f"{path}: another process has locked the segment to remove it")
            time.sleep(SWEEP_S / 1000)


def _open_existing(path: Path, writable: bool) -> File:
    """Opens a file that may be a segment: a regular file of this user without access for others."""
    file = File()
    follow = 0 if is_descriptor(path) else os.O_NOFOLLOW
    try:
        with ClosedAfterError(file):
            file.open(path, (os.O_RDWR if writable else os.O_RDONLY) | follow | os.O_NONBLOCK)
            status = os.fstat(file.fd)
            if not stat.S_ISREG(status.st_mode):
                raise SegmentCorrupt(f"{path}: expected a regular file")
            if status.st_uid != os.geteuid() or status.st_mode & 0o077:
                raise SegmentCorrupt(f"{path}: expected a file of this user alone, mode 0600 (chmod 600)")
            return file
    except (FileNotFoundError, NotADirectoryError):
        raise SegmentNotFound(f"{path}: no such segment") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM):
            raise
        raise SegmentCorrupt(f"{path}: expected a segment, got {error.strerror}") from None


def check_allocated(file: File, path: Path, writable: bool) -> None:
    """Backs each page of a file by memory or disk, since touching a page that cannot be backed raises SIGBUS.

    Neither the number of blocks nor SEEK_HOLE alone tells whether a file has holes. A compressed file has too few
    blocks for its bytes, but no hole. Some file systems also count their index blocks, which hides holes. SEEK_HOLE
    also reports pages that are allocated but unwritten: in a new segment, all pages. Block counts are exact only in
    /dev/shm.
    """
    status = os.fstat(file.fd)
    missing = status.st_size - 512 * status.st_blocks
    if missing <= 0 and (not writable or status.st_dev == os.stat(SHM_DIR).st_dev):
        return
    if os.lseek(file.fd, 0, os.SEEK_HOLE) == status.st_size:
        return
    if not writable:
        raise SegmentCorrupt(f"{path}: {EXPECTED}, got holes of {missing} bytes; {ADVICE}")
    free = free_bytes(path.parent)
    if missing > free:
        raise full(path.parent, missing, free)
    try:
        with noticing_full(path.parent, missing):
            file.allocate(status.st_size)  # without writing, since other processes may write to the file
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        got = "holes that the file system cannot fill"
        raise SegmentCorrupt(f"{path}: {EXPECTED}, got {got}; {ADVICE}") from None
