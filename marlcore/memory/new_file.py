"""Creates or replaces a segment's file: it has no name until it is complete, and is allocated before it is written."""

import errno
import os
import secrets
import stat
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..closing import ClosedAfterError
from ..errors import MarlcoreError
from ..regular_files import mode_of
from .files import File, sync_directory
from .header import CHECKSUM, Header
from .native import LINE, try_lock
from .space import SHM_DIR, free_bytes, full, noticing_full
from .survey import PREFIX, SEGMENT_LOCK, survey_segments

SEALED = 1 << 32  # the bit above a checksum of 32 bits: it says that the checksum applies
_BLOCK = 1 << 20
ASIDE = ".marlcore-aside-"  # prefix of the temporary name of a complete file, just before it replaces another

Put = Callable[[int, NDArray[np.uint8]], None]  # put(offset, data) writes bytes of a body


def lasting(target: Path) -> Path:
    """Checks and returns the path of a file that must persist. Raises ValueError if `sweep` would remove it."""
    if target.parent == SHM_DIR and target.name.startswith(PREFIX):
        expected = f"a name without {PREFIX!r} in {SHM_DIR}, where unused segments are removed"
        raise ValueError(f"path: expected {expected}, got {target}")
    return target


def open_nameless(target: Path, nbytes: int, name: Path | None = None) -> File:
    """Creates a file of `nbytes` allocated bytes, without a name, in target's directory, which must exist.

    `link` will give the file this `name`. If there is no `name` and the file system lacks O_TMPFILE, the file is called
    `target` for a moment.
    """
    file = File(name or "")
    if not stat.S_ISDIR(mode_of(target.parent)):
        raise ValueError(f"path: expected a file in a directory that exists, got {target}")
    free = free_bytes(target.parent)
    if nbytes > free:
        raise full(target.parent, nbytes, free)
    with ClosedAfterError(file):
        try:
            file.open(target.parent, os.O_TMPFILE | os.O_RDWR)
        except OSError as error:
            if name or error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):  # as from older overlay file systems
                raise
            file.open(target, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR)
            target.unlink()
        with noticing_full(target.parent, nbytes):
            os.posix_fallocate(file.fd, 0, nbytes)
        return file


def write_header_and_body(fd: int, header: Header, fill: Callable[[Put], None] | None) -> None:
    """Writes the header, then the part of the body that `fill` writes."""
    _put(fd, 0, 0, np.frombuffer(header.raw, np.uint8))
    if fill is not None:
        fill(partial(_put, fd, header.header_bytes))


def write_checksum(fd: int, header: Header) -> None:
    """Writes the body's checksum behind the body; see `Segment.verify`."""
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
    """Takes the shared lock of a nameless file. Raises MarlcoreError if a process locked it through /proc."""
    if not try_lock(file.fd, SEGMENT_LOCK, exclusive=False):
        raise MarlcoreError(f"{target}: another process has locked the segment before it has a name")


def give_name(file: File, target: Path) -> None:
    try:
        file.link()
    except FileExistsError:
        raise ValueError(f"path: expected a file that does not exist yet, got {target}") from None


def replace_file(
    target: Path, description: dict[str, Any], body_bytes: int, fill: Callable[[Put], None],
    check: Callable[[], None] | None = None,
) -> None:  # fmt: skip
    """Writes a segment to an ordinary file and atomically replaces the file at `target`.

    The file has no name while it is written. Linking cannot replace an existing name, so the file gets a temporary name
    and is renamed. A process that dies between these steps leaves a complete temporary file, which the next call for
    this directory removes. A checksum follows the body; see `Segment.verify`.

    `check` is called just before the renaming; if it raises, the old file stays. With `check`, temporary files are left
    to `remove_asides`, since they may be those of another machine.

    Raises:
        SharedMemoryFull: the file system has no room. ValueError: the target is not an ordinary file in a directory.
        OSError: the file system failed. MarlcoreError: another process locked the file before it had a name. After
        any of these, the old file is still there.
    """
    if (mode := mode_of(lasting(target))) and not stat.S_ISREG(mode):
        raise ValueError(f"path: expected an ordinary file, got {target}, which is not one")
    end = -(-body_bytes // LINE) * LINE
    header = Header.build(secrets.randbits(64), {**description, CHECKSUM: end}, end + LINE)
    if check is None:
        survey_segments(target.parent, ASIDE, remove=True)
    aside = target.with_name(f"{_asides_of(target)}{header.nonce:016x}")
    with open_nameless(target, header.segment_bytes, aside) as file:
        with noticing_full(target.parent, header.segment_bytes):  # some file systems allocate only on writes
            write_header_and_body(file.fd, header, fill)
            write_checksum(file.fd, header)
            os.fsync(file.fd)
        hold(file, target)  # so that no other process removes the file as left behind
        give_name(file, aside)
        try:
            if check is not None:
                check()
            os.replace(aside, target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    sync_directory(target.parent)


def remove_asides(target: Path) -> None:
    """Removes the temporary files of `target`. A process that is about to rename one then fails."""
    for left in target.parent.glob(f"{_asides_of(target)}*"):
        left.unlink(missing_ok=True)


def _asides_of(target: Path) -> str:
    """Returns what the names of a target's temporary files begin with: short, however long the target's name is."""
    return f"{ASIDE}{zlib.crc32(os.fsencode(target.name)):08x}-"
