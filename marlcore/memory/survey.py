"""Lists this user's segments, tells which of them a process has mapped, and removes the others on request.

Each process that maps a segment holds a shared kernel lock on byte 0 of its file. A process that removes a segment
must first obtain the exclusive lock, which proves that no process has it mapped.
"""

import errno
import functools
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from ..errors import suppress_failed_calls
from .files import File, same_file, too_many_files
from .native import is_locked, try_lock
from .space import SHM_DIR

PREFIX = "marlcore-"
SEGMENT_LOCK = 0  # the byte of a file that its users lock


@dataclass(frozen=True)
class SegmentFile:
    """A file of this user with a segment's name."""

    name: str  # in its directory
    nbytes: int  # the memory it takes
    written: float  # time of the last write that the file system recorded, in seconds of `time.time()`
    held: bool  # whether a living process has it mapped
    inode: tuple[int, int]  # (device, inode)


def survey_segments(directory: Path = SHM_DIR, prefix: str = PREFIX, *, remove: bool = False) -> list[SegmentFile]:
    """Lists this user's segments whose names begin with `prefix`, sorted; `remove` removes those that no process maps.

    Without `remove`, the survey takes no lock, so it cannot disturb a process that attaches at the same time.
    """
    files = []
    for name in sorted(_names(directory)):
        if name.startswith(prefix):
            with File() as file:
                segment = _survey_one(file, directory / name, remove)
            if segment is not None:
                files.append(segment)
    return files


def sweep() -> list[str]:
    """Removes every segment of this user in /dev/shm that no living process has mapped; returns their names."""
    return [file.name for file in survey_segments(remove=True) if not file.held]


sweep_once = functools.cache(sweep)  # before this process creates its first segment


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise too_many_files(directory) from None
        raise


def _survey_one(file: File, path: Path, remove: bool) -> SegmentFile | None:
    """Surveys one file; returns None if it is gone, belongs to another user or is not a regular file."""
    with suppress_failed_calls():
        file.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    if file.fd < 0:
        return None
    status = os.fstat(file.fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        return None
    held = not try_lock(file.fd, SEGMENT_LOCK, exclusive=True) if remove else is_locked(file.fd, SEGMENT_LOCK)
    if not same_file(file.fd, path):
        return None
    if remove and not held:
        path.unlink(missing_ok=True)
    inode = status.st_dev, status.st_ino
    return SegmentFile(path.name, 512 * status.st_blocks, status.st_mtime, held, inode)
