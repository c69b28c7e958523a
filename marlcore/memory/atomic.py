"""Writing a segment to an ordinary file in the place of another one: on disk, all of it or nothing."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import File
from .header import Header
from .new_file import Put, give_name, hold, lasting, open_nameless, write_header_and_body
from .space import noticing_full
from .survey import survey_names

__all__ = ["replace_file"]

ASIDE = ".marlcore-aside-"  # the name of a whole file for the instant before it replaces another


def replace_file(target: Path, description: dict[str, Any], body_bytes: int, fill: Callable[[Put], None]) -> None:
    """Writes a segment to an ordinary file, in place of what is there: on disk, all of it or nothing.

    The file has no name while it is written. It cannot take one that is taken, so it gets a name aside and is renamed:
    who dies between the two leaves a whole file aside, which the next call for this directory removes.

    Raises:
        SharedMemoryFull: the file system has no room. ValueError: the target is no ordinary file, or in no directory.
        OSError: the file system failed. MarlcoreError: another process locked the file before it had a name. In each
        case what was there stays.
    """
    if lasting(target).exists() and not target.is_file():
        raise ValueError(f"path: expected an ordinary file, got {target}, which is none")
    header = Header.build(secrets.randbits(64), description, body_bytes)
    survey_names(target.parent, ASIDE, remove=True)
    aside = target.with_name(f"{ASIDE}{header.nonce:016x}")
    with open_nameless(target, header.segment_bytes, aside) as file:
        with noticing_full(target.parent, header.segment_bytes):  # some file systems allocate when they are written to
            write_header_and_body(file.fd, header, fill)
            os.fsync(file.fd)
        hold(file, target)  # so that nobody else takes it for left behind
        give_name(file, aside)
        aside.replace(target)
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Puts the names in a directory on disk."""
    with File() as file:
        file.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(file.fd)
