"""One process at a time works in a directory: it locks a file there, which other users cannot open, let alone lock."""

import errno
import os
from pathlib import Path

from ...errors import suppress_failed_calls
from ...memory import File, is_locked, same_file, try_lock
from ...regular_files import open_regular

LOCK = ".lock"


def lock_directory(folder: Path) -> File | None:
    """The lock, which ends when it is closed or this process ends; None: another process has it. Raises OSError."""
    path = folder / LOCK
    while True:
        file = File(path)
        file.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        os.fchmod(file.fd, 0o600)  # a copy of the directory may have another mode
        locked = try_lock(file.fd, 0, exclusive=True)
        if locked and same_file(file.fd, path):
            return file
        file.close()
        if not locked:
            return None


def is_directory_locked(folder: Path) -> bool:
    """Whether a process works in the directory. Raises OSError: it is another user's."""
    with suppress_failed_calls(errno.ENOENT), open_regular(folder / LOCK) as file:
        return is_locked(file.fileno(), 0)
    return False


def holds_files(folder: Path) -> bool:
    """Whether anything lies in the directory, apart from its lock."""
    return any(path.name != LOCK for path in folder.iterdir())
