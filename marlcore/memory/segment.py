"""Segments: files in /dev/shm that appear complete or not at all; a sweep removes the files of dead processes.

A segment is a header (magic, layout version, sizes, nonce, checksum, a JSON description) padded to pages, then a
zeroed body. Users of its file lock byte 0 (see survey.py); users of its lanes lock later bytes (see lanes.py).
"""

import atexit
import contextlib
import os
import re
import secrets
import tempfile
import weakref
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import as_path
from ..closing import ClosedAfterError
from ..errors import ClosedError, LayoutMismatch, MarlcoreError, SegmentCorrupt, SharedMemoryFull, StaleHandle
from .existing_file import check_allocated, open_named
from .files import OWN_FILES, File, MappedFile, is_descriptor, same_file
from .guard import invalidate_after_fork
from .header import CHECKSUM, Header
from .native import is_locked, try_lock
from .new_file import SEALED, Put, give_name, hold, lasting, open_nameless, write_header_and_body
from .space import SHM_DIR, check_shm_dir, notice_spill, noticing_full
from .survey import PREFIX, sweep_once

_NAME = re.compile(r"[A-Za-z0-9_.]+")
_LONGEST_NAME = 200  # characters; with the prefix and the nonce, a file's name in Linux has at most 255
_open: "weakref.WeakSet[Segment]" = weakref.WeakSet()


@dataclass(frozen=True)
class SegmentHandle:
    """Picklable reference to a segment: its path, its nonce, and a checksum of its layout."""

    path: str
    nonce: int
    layout: int


class Segment:
    """One mapped segment, made by `create` or `attach`. Views of `body`, its shared bytes, keep the mapping alive."""

    def __init__(self, file: File, path: Path, header: Header, writable: bool = True) -> None:
        self.path = path
        self.nonce = header.nonce
        self.description = {key: value for key, value in header.description.items() if key != CHECKSUM}
        self.handle = SegmentHandle(str(path), header.nonce, header.layout)
        self.nbytes = header.segment_bytes
        self._mapping = MappedFile(file.fd, path, self.nbytes, writable)
        mapped, end = np.asarray(self._mapping)[header.header_bytes :], header.description.get(CHECKSUM)
        self.body: NDArray[np.uint8] = mapped[:end]
        self._checksum = None if end is None else mapped[end : end + 8].view(np.uint64)
        self._file = file
        self.attaches_anew = False  # whether the first use in a forked child attaches to the file; else it is refused
        self._closed: tuple[type[MarlcoreError], str] | None = None
        invalidate_after_fork(self)
        _open.add(self)

    @classmethod
    def create(
        cls,
        name: str,
        description: dict[str, Any],
        body_bytes: int,
        path: str | os.PathLike[str] | None = None,
        fill: Callable[[Put], None] | None = None,
        spill: bool = False,
        keep: bool = True,
    ) -> "Segment":
        """Makes a zeroed segment of `body_bytes`, in /dev/shm or in an ordinary file at `path`.

        A segment in /dev/shm is removed when its creator closes it; one at `path` stays until `unlink`, unless `keep`
        is False and its creator closes it before `keep_name`. `fill` writes the start of the body before any process
        can find the segment. With `spill`, a segment for which /dev/shm has no room becomes an unlinked file in the
        temporary directory; processes can attach to it only while its creator lives.

        Raises:
            SharedMemoryFull: the file system, the memory limit or the address space has no room; nothing was created.
            ValueError: the name has characters other than letters, digits, "_" and ".", or the path exists.
            MarlcoreError: another process locked the file before it had a name, or no descriptor is free.
        """
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"name: expected letters, digits, '_' and '.', got {name!r}")
        if len(name) > _LONGEST_NAME:
            raise ValueError(f"name: expected at most {_LONGEST_NAME} characters, got {len(name)}")
        if path is None:
            check_shm_dir()
            sweep_once()
        header = Header.build(secrets.randbits(64), description, body_bytes)
        in_shm = SHM_DIR / f"{PREFIX}{name}-{header.nonce:016x}"
        target = lasting(as_path("path", path).absolute()) if path is not None else in_shm
        try:
            file = open_nameless(target, header.segment_bytes, target)
        except SharedMemoryFull as error:
            if path is None and spill:
                return cls._spill(header, fill, error)
            raise
        with ClosedAfterError(file):
            with noticing_full(target.parent, header.segment_bytes):  # as in replace_file
                write_header_and_body(file.fd, header, fill)
            hold(file, target)
            segment = cls(file, target, header)
            give_name(file, target)
            if path is not None and keep:
                segment.keep_name()
            return segment

    @classmethod
    def _spill(cls, header: Header, fill: Callable[[Put], None] | None, why: SharedMemoryFull) -> "Segment":
        """Makes an unlinked file in the temporary directory. Raises SharedMemoryFull if that is full or missing."""
        try:
            directory = Path(tempfile.gettempdir())
            file = open_nameless(directory / f"{PREFIX}{header.nonce:016x}", header.segment_bytes)
        except (SharedMemoryFull, FileNotFoundError) as error:
            raise SharedMemoryFull(f"{why}; {error}") from None
        with ClosedAfterError(file):
            with noticing_full(directory, header.segment_bytes):
                write_header_and_body(file.fd, header, fill)
            segment = cls(file, Path(f"/proc/{os.getpid()}/fd/{file.fd}"), header)
        notice_spill(directory)
        return segment

    @classmethod
    def attach(cls, handle: SegmentHandle | str | os.PathLike[str], writable: bool = True) -> "Segment":
        """Maps the segment that a handle refers to, or the segment at a path; read-only unless `writable`.

        Raises:
            SegmentNotFound: the file does not exist. SegmentCorrupt: it is not a segment of this user alone.
            StaleHandle: another segment took the name. LayoutMismatch: the layout differs from the handle's.
            SharedMemoryFull: there is no room to fill the file's holes, or no address space to map the file.
            MarlcoreError: no descriptor is free.
        """
        path = as_path("path", handle.path if isinstance(handle, SegmentHandle) else handle).absolute()
        file = open_named(path, writable)
        with ClosedAfterError(file):
            header = Header.read(file.fd, path)
            if isinstance(handle, SegmentHandle):
                _check_same(path, header, handle)
            check_allocated(file, path, writable)
            return cls(file, path, header, writable)

    def check_open(self) -> None:
        """Checks that the segment is usable; in a forked child, it may first have to attach anew, see `attach`.

        Raises ClosedError after `close`, StaleHandle in a forked child of a segment that does not attach anew.
        """
        if self._closed is not None:
            kind, why = self._closed
            if kind is not StaleHandle or not self.attaches_anew:
                raise kind(f"{self.path}: {why}")
            self._attach_anew()

    def _attach_anew(self) -> None:
        writable = self.body.flags.writeable
        file = open_named(self.path, writable)
        with ClosedAfterError(file):
            _check_same(self.path, Header.read(file.fd, self.path), self.handle)
            check_allocated(file, self.path, writable)
            self._mapping.attach(file.fd)
        self._file, self._closed = file, None

    def verify(self, waits: int = 0) -> None:
        """Compares a save's body with its checksum, unless a process has locked part of the save to use it in place.

        The first `waits` bytes, 0 in a save, are left out: there, processes announce a wait without a lock.

        Raises SegmentCorrupt if they differ.
        """
        self.check_open()
        if self._checksum is None:
            return
        crc = zlib.crc32(self.body[waits:].data, zlib.crc32(bytes(waits)))
        if int(self._checksum[0]) not in (0, crc | SEALED):  # read last: writers set it to 0 first
            raise SegmentCorrupt(f"{self.path}: the content has changed since the save, whose checksum differs")

    def is_at(self, path: Path) -> bool:
        return same_file(self._file.fd, path)

    def lock(self, offset: int, exclusive: bool = True, beside: File | None = None) -> File | None:
        """Returns an open file that holds the lock of byte `offset` until it is closed, or None on a conflict.

        If `beside`, the file of an earlier call, is given, the lock is added to that file; a conflict closes the file.
        """
        self.check_open()
        if not self.body.flags.writeable:
            raise MarlcoreError(f"{self.path}: expected a process that attached to it, got one that only watches it")
        file = beside
        if file is None:
            file = File()
            invalidate_after_fork(file)
            file.open(f"{OWN_FILES}/{self._file.fd}", os.O_RDWR)
        if try_lock(file.fd, offset, exclusive):
            if self._checksum is not None:
                self._checksum[0] = 0  # the holder may change the body
            return file
        file.close()
        return None

    def is_locked(self, offset: int) -> bool:
        """Returns whether a living process, this one included, holds a lock of byte `offset`."""
        self.check_open()
        return is_locked(self._file.fd, offset)

    def keep_name(self) -> None:
        """Makes `close` leave the file of a segment that this process created."""
        self._file.keep_name()

    def close(self) -> None:
        """Releases the segment; the kernel unmaps the memory when its last view is gone."""
        self._let_go(ClosedError, "it was closed")

    def unlink(self) -> bool:
        """Removes the segment's name, and returns whether it still had one; processes that have mapped it keep it."""
        if self._closed is None:
            named = not is_descriptor(self.path) and same_file(self._file.fd, self.path)
            if named:
                self.path.unlink(missing_ok=True)
            return named
        with contextlib.suppress(MarlcoreError):  # the segment is gone, or another file has its name
            again = Segment.attach(self.handle)
            with contextlib.closing(again):
                return again.unlink()
        return False

    def forked(self) -> None:
        """Releases the segment in a forked child. Arrays of its bytes stay valid.

        The next use attaches again if the segment `attaches_anew`; otherwise, it raises.
        """
        if self._closed is not None:
            return
        self._mapping.detach(self._file.fd)
        why = "it was opened before a fork; use spawn, or attach to its handle in the child"
        if self.attaches_anew:
            self._file.close()
            self._closed = StaleHandle, why
        else:
            self._let_go(StaleHandle, why)

    def _let_go(self, kind: type[MarlcoreError], why: str) -> None:
        """Releases everything. Each step may run twice, since an interrupted call may have done it already."""
        self._closed = kind, why
        vars(self).pop("body", None)
        vars(self).pop("_mapping", None)
        self._checksum = None
        self._file.close()


def _check_same(path: Path, header: Header, handle: SegmentHandle) -> None:
    if header.nonce != handle.nonce:
        raise StaleHandle(f"{path}: the handle's segment is gone, and another one has its name")
    if header.layout != handle.layout:
        raise LayoutMismatch(f"{path}: the segment's layout differs from the handle's")


def close_all() -> None:
    """Closes segments that are still open, since Python may not collect them at exit."""
    for segment in list(_open):
        segment.close()


atexit.register(close_all)
