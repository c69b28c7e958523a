"""Writing files so that a reader never sees half of one, and so that an error names the file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["naming", "write_atomically"]


def write_atomically(path: Path, data: bytes) -> None:
    """Make `path` hold `data`, atomically: even after a crash, a reader sees all of it or the old content.

    Raises OSError: the disk is full or failed; the old content is intact, as the error says.
    """
    aside = path.with_name(f".{path.name}.new")  # each file has one writer; it overwrites what a killed one left
    kept = "the earlier one is kept" if path.exists() else "there is no earlier one"
    try:
        with naming(path, f"{len(data):,} bytes were not written, {kept}"):
            with open(aside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def naming(path: Path, kept: str) -> Iterator[None]:
    """Adds to an error of a write, which names no file, the file's name and what was kept."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a signal handler's
            raise
        raise OSError(error.errno, f"{error.strerror or error}; {kept}", str(path)) from error
