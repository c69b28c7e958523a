"""Atomic replacement of an ordinary file by a new segment: after a crash, the disk has the old or the new one."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .files import File
from .header import CHECKSUM, Header
from .native import LINE
from .new_file import Put, give_name, hold, lasting, open_nameless, write_checksum, write_header_and_body
from .space import noticing_full
from .survey import survey_names

ASIDE = ".marlcore-aside-"  # prefix of the temporary name of a complete file, just before it replaces another


def replace_file(target: Path, description: dict[str, Any], body_bytes: int, fill: Callable[[Put], None]) -> None:
    """Writes a segment to an ordinary file and atomically replaces the file that is there.

    The file has no name while it is written. Linking cannot replace an existing name, so the file gets a temporary name
    and is renamed. A process that dies between these steps leaves a complete temporary file, which the next call for
    this directory removes. A checksum follows the body; see `Segment.verify`.

    Raises:
        SharedMemoryFull: the file system has no room. ValueError: the target is not an ordinary file in a directory.
        OSError: the file system failed. MarlcoreError: another process locked the file before it had a name. After
        any of these, the old file is still there.
    """
    if lasting(target).exists() and not target.is_file():
        raise ValueError(f"path: expected an ordinary file, got {target}, which is not one")
    end = -(-body_bytes // LINE) * LINE
    header = Header.build(secrets.randbits(64), {**description, CHECKSUM: end}, end + LINE)
    survey_names(target.parent, ASIDE, remove=True)
    aside = target.with_name(f"{ASIDE}{header.nonce:016x}")
    with open_nameless(target, header.segment_bytes, aside) as file:
        with noticing_full(target.parent, header.segment_bytes):  # some file systems allocate only on writes
            write_header_and_body(file.fd, header, fill)
            write_checksum(file.fd, header)
            os.fsync(file.fd)
        hold(file, target)  # so that no other process removes it as left behind
        give_name(file, aside)
        os.replace(aside, target)
    _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    """Puts the names in a directory on disk."""
    with File() as file:
        file.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(file.fd)
