"""Opens regular files, but not pipes and devices, which may block or never end; adds file names to write errors."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import suppress_failed_calls


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a file for reading. Raises OSError, or ValueError if it is a pipe or a device."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC))  # noqa: SIM115
    try:
        check_regular(path, file.fileno())
    except ValueError:
        file.close()
        raise
    return file


def read_regular(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """Reads a file. Raises ValueError if it is longer than `most` bytes, by default the size of the memory."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = memory if most is None else most
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit or len(data := file.read(-1 if most is None else most + 1)) > limit:
            raise ValueError(f"{os.fspath(path)!r}: expected a file of at most {limit:,} bytes, got a longer one")
    return data


def check_regular(path: str | os.PathLike[str], fd: int) -> None:
    """Raises ValueError if the open file is a pipe or a device."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise ValueError(f"{os.fspath(path)!r}: expected a regular file, got a pipe or a device")


def mode_of(path: Path) -> int:
    """Returns the mode of a file or directory, 0 if there is none at the path.

    Raises OSError if the file system fails (since Python 3.14, `Path.is_dir` returns False then).
    """
    with suppress_failed_calls(errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
        return path.stat().st_mode
    return 0


@contextmanager
def naming(path: Path, kept: str) -> Iterator[None]:
    """Adds the file's name, and `kept`, which says what became of the file, to an OSError of the `with` block."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a signal handler raised it
            raise
        raise OSError(error.errno, f"{error.strerror or error}; {kept}", str(path)) from error
