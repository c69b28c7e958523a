"""Segments: files in /dev/shm that appear whole or not at all, and never outlive their last process unseen.

A segment is a header (magic, layout version, sizes, nonce, checksum, a JSON description) padded to pages, then
a body that starts zeroed. Every process that maps a segment holds a shared kernel lock on byte 0 of its file:
`sweep` removes a segment only when it obtains the exclusive lock, so only when nobody has it mapped, even after
SIGKILL of everyone. Bytes 1.. are the locks of what lies in the body: see lane.py.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import mmap
import os
import re
import secrets
import stat
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from . import cgroup
from ._native import is_locked, try_lock
from .errors import (
    ClosedError,
    LayoutMismatch,
    MarlcoreError,
    SegmentCorrupt,
    SegmentNotFound,
    SharedMemoryFull,
    StaleHandle,
)

__all__ = [
    "Put",
    "Segment",
    "SegmentFile",
    "SegmentHandle",
    "invalidate_after_fork",
    "replace_file",
    "survey",
    "sweep",
]

SHM_DIR = Path("/dev/shm")
PREFIX = "marlcore-"
SWEEP_S = 1.0  # far longer than a sweep holds the lock of a file
ASIDE = ".marlcore-aside-"  # the name of a whole file for the instant before it replaces another

Put = Callable[[int, NDArray[np.uint8]], None]  # put(offset, data) writes bytes of a body

MAGIC = b"marlcore"
LAYOUT_VERSION = 3
# magic, layout version, checksum, header bytes, segment bytes, nonce, description bytes
_HEADER = struct.Struct("<8sIIQQQQ")
_CHECKSUM_AT = 12
_MAX_HEADER = 1 << 26
_PAGE = 4096
_NAME = re.compile(r"[A-Za-z0-9_.]+")


class Forkable(Protocol):
    """Something that a forked child must not go on using."""

    def forked(self) -> None:
        """Called in the child: give back descriptors, refuse further use."""


_forkable: weakref.WeakSet[Any] = weakref.WeakSet()


@dataclass(frozen=True)
class SegmentHandle:
    """Picklable name of a segment: where it is, which one it is, and how it is laid out."""

    path: str
    nonce: int
    layout: int


class Segment:
    """One mapped segment. Use `create` or `attach`.

    Attributes:
        body: the shared bytes, uint8 [body bytes]; views of it keep the mapping alive.
        description: what the creator said of the layout.
        path: the segment's file.
    """

    def __init__(self, fd: int, path: Path, header: _Header, owner: bool, writable: bool = True) -> None:
        self.path = path
        self.nonce = header.nonce
        self.description = header.description
        self.handle = SegmentHandle(str(path), header.nonce, header.layout)
        self._fd = fd
        access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
        mapping = mmap.mmap(fd, header.segment_bytes, prot=access)
        self.nbytes = header.segment_bytes
        self.body: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8, offset=header.header_bytes)
        self._closed: str | None = None
        self._finalizer = weakref.finalize(self, _release, fd, str(path) if owner else None, os.getpid())
        invalidate_after_fork(self)

    @classmethod
    def create(
        cls,
        name: str,
        description: dict[str, Any],
        body_bytes: int,
        path: str | os.PathLike[str] | None = None,
        fill: Callable[[Put], None] | None = None,
    ) -> Segment:
        """Makes a zeroed segment of `body_bytes`, in /dev/shm or in an ordinary file at `path`.

        One in /dev/shm is removed when its creator lets go of it; one at `path` stays until `unlink`.
        `fill` writes what the body begins with, before anybody can find the segment.

        Raises:
            SharedMemoryFull: the file system or the memory limit has no room; nothing was created.
            ValueError: the name has other characters than letters, digits, "_" and ".", or path exists.
            MarlcoreError: another process locked the file before it had a name.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"name: expected letters, digits, '_' and '.', got {name!r}")
        if path is None:
            _sweep_once()
        header = _Header.build(secrets.randbits(64), description, body_bytes)
        in_shm = SHM_DIR / f"{PREFIX}{name}-{header.nonce:016x}"
        target = _lasting(Path(path).absolute()) if path is not None else in_shm
        fd = _open_nameless(target, header.segment_bytes)
        try:
            with _noticing_full(target.parent, header.segment_bytes):  # as in replace_file
                _write(fd, header, fill)
            _hold(fd, target)
            segment = cls(fd, target, header, owner=path is None)
        except BaseException:
            os.close(fd)
            raise
        try:
            _give_name(fd, target)
        except BaseException:
            try:
                segment.unlink()  # it may have its name already
            finally:
                segment.close()
            raise
        return segment

    @classmethod
    def attach(cls, handle: SegmentHandle | str | os.PathLike[str], writable: bool = True) -> Segment:
        """Maps the segment that a handle names, or the one at a path; to look at only, unless it is `writable`.

        Raises:
            SegmentNotFound: nothing is there. SegmentCorrupt: no segment, or not this user's alone.
            StaleHandle: another segment took the name. LayoutMismatch: it is laid out otherwise.
        """
        path = Path(handle.path if isinstance(handle, SegmentHandle) else handle).absolute()
        fd = _open_named(path, writable)
        try:
            header = _Header.read(fd, path)
            if isinstance(handle, SegmentHandle) and header.nonce != handle.nonce:
                raise StaleHandle(f"{path}: the handle's segment is gone, another one took its name")
            if isinstance(handle, SegmentHandle) and header.layout != handle.layout:
                raise LayoutMismatch(f"{path}: the segment's layout is not the one of the handle")
            return cls(fd, path, header, owner=False, writable=writable)
        except BaseException:
            os.close(fd)
            raise

    def check_open(self) -> None:
        """Raises ClosedError after `close`, StaleHandle in a forked child."""
        if self._closed is not None:
            raise (StaleHandle if "fork" in self._closed else ClosedError)(f"{self.path}: {self._closed}")

    @property
    def closed(self) -> bool:
        return self._closed is not None

    def is_at(self, path: Path) -> bool:
        """Whether the path leads to this segment's file."""
        return _same_file(self._fd, path)

    def lock(self, offset: int, exclusive: bool = True) -> int | None:
        """A new descriptor that holds the lock of byte `offset`, or None when another one is in its way."""
        self.check_open()
        fd = os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC)
        locked = False
        try:
            locked = try_lock(fd, offset, exclusive)
        finally:
            if not locked:
                os.close(fd)
        return fd if locked else None

    def is_locked(self, offset: int) -> bool:
        """Whether a living process holds a lock of byte `offset`, this one included."""
        self.check_open()
        return is_locked(self._fd, offset)

    def close(self) -> None:
        """Lets go of the segment; the memory is unmapped when the last view of it is gone."""
        if self._closed is None:
            self._closed = "it was closed"
            del self.body
            self._finalizer()

    def unlink(self) -> None:
        """Removes the segment's name; processes that have it mapped keep it. Harmless when repeated."""
        if self._closed is None:
            _unlink_ours(self.path, self._fd)
            return
        with contextlib.suppress(MarlcoreError):  # gone, or another file has the name now
            again = Segment.attach(self.handle)
            again.unlink()
            again.close()

    def forked(self) -> None:
        """In a forked child: lets go, and says so when used."""
        if self._closed is None:
            self._closed = "it was opened before a fork; attach to its handle in the child"
            del self.body
            self._finalizer()


@dataclass(frozen=True)
class SegmentFile:
    """A file of this user with a segment's name.

    Attributes:
        name: in its directory.
        nbytes: memory that it takes.
        written: when its file system last noted a write, in seconds of `time.time()`.
        held: whether a living process has it mapped.
        inode: (device, inode).
    """

    name: str
    nbytes: int
    written: float
    held: bool
    inode: tuple[int, int]


def survey(directory: Path = SHM_DIR, *, remove: bool = False) -> list[SegmentFile]:
    """Every segment of this user, by name; with `remove`, those that no living process has mapped are gone now.

    Without `remove` it takes no lock, so nobody who attaches meanwhile notices.
    """
    return _survey(directory, PREFIX, remove)


def sweep() -> list[str]:
    """Removes every segment of this user in /dev/shm that no living process has mapped; their names."""
    return [file.name for file in survey(remove=True) if not file.held]


def replace_file(target: Path, description: dict[str, Any], body_bytes: int, fill: Callable[[Put], None]) -> None:
    """Writes a segment to an ordinary file, in place of what is there: on disk, all of it or nothing.

    The file has no name while it is written. It cannot take one that is taken, so it gets a name aside and is renamed:
    who dies between the two leaves a whole file aside, which the next call for this directory removes.

    Raises:
        SharedMemoryFull: the file system has no room. ValueError: the target is no ordinary file, or in no directory.
        OSError: the file system failed. MarlcoreError: another process locked the file before it had a name. In each
        case what was there stays.
    """
    if _lasting(target).exists() and not target.is_file():
        raise ValueError(f"path: expected an ordinary file, got {target}, which is none")
    header = _Header.build(secrets.randbits(64), description, body_bytes)
    _survey(target.parent, ASIDE, remove=True)
    fd = _open_nameless(target, header.segment_bytes)
    try:
        with _noticing_full(target.parent, header.segment_bytes):  # some file systems allocate when they are written to
            _write(fd, header, fill)
            os.fsync(fd)
        _hold(fd, target)  # so that nobody else takes it for left behind
        aside = target.with_name(f"{ASIDE}{header.nonce:016x}")
        try:
            _give_name(fd, aside)
            aside.replace(target)
        finally:
            aside.unlink(missing_ok=True)
    finally:
        os.close(fd)
    _sync_directory(target.parent)


@functools.cache
def _sweep_once() -> None:
    """Whoever makes the first segment of a process clears away what dead ones left."""
    sweep()


@dataclass(frozen=True)
class _Header:
    raw: bytes
    header_bytes: int
    segment_bytes: int
    nonce: int
    layout: int
    description: dict[str, Any]

    @classmethod
    def build(cls, nonce: int, description: dict[str, Any], body_bytes: int) -> _Header:
        text = json.dumps(description, sort_keys=True).encode()
        header_bytes = -(-(_HEADER.size + len(text)) // _PAGE) * _PAGE
        segment_bytes = header_bytes + -(-body_bytes // _PAGE) * _PAGE
        fixed = _HEADER.pack(MAGIC, LAYOUT_VERSION, 0, header_bytes, segment_bytes, nonce, len(text))
        raw = bytearray((fixed + text).ljust(header_bytes, b"\0"))
        struct.pack_into("<I", raw, _CHECKSUM_AT, zlib.crc32(raw))
        return cls(bytes(raw), header_bytes, segment_bytes, nonce, zlib.crc32(text), description)

    @classmethod
    def read(cls, fd: int, path: Path) -> _Header:
        """Copies the header once into private memory and believes nothing that was not checked there."""
        fixed = os.pread(fd, _HEADER.size, 0)
        if len(fixed) < _HEADER.size or not fixed.startswith(MAGIC):
            raise SegmentCorrupt(f"{path}: expected a marlcore segment, got another file")
        header_bytes = _HEADER.unpack(fixed)[3]
        if not _PAGE <= header_bytes <= _MAX_HEADER or header_bytes % _PAGE:
            raise SegmentCorrupt(f"{path}: the header's length {header_bytes} is out of range")
        raw = bytearray(os.pread(fd, header_bytes, 0))
        if len(raw) != header_bytes:
            raise SegmentCorrupt(f"{path}: the file ends inside its header")
        magic, version, checksum, header_again, segment_bytes, nonce, text_bytes = _HEADER.unpack_from(raw)
        if version != LAYOUT_VERSION:
            raise SegmentCorrupt(f"{path}: expected layout version {LAYOUT_VERSION}, got {version}")
        struct.pack_into("<I", raw, _CHECKSUM_AT, 0)
        if magic != MAGIC or header_again != header_bytes or zlib.crc32(raw) != checksum:
            raise SegmentCorrupt(f"{path}: the header's checksum does not match")
        size = os.fstat(fd).st_size
        if text_bytes > header_bytes - _HEADER.size or segment_bytes != size or size <= header_bytes:
            raise SegmentCorrupt(f"{path}: expected a file of {segment_bytes} bytes, got {size}")
        text = bytes(raw[_HEADER.size : _HEADER.size + text_bytes])
        struct.pack_into("<I", raw, _CHECKSUM_AT, checksum)
        try:
            description = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise SegmentCorrupt(f"{path}: the header's description cannot be read: {error}") from None
        return cls(bytes(raw), header_bytes, segment_bytes, nonce, zlib.crc32(text), description)


def _write(fd: int, header: _Header, fill: Callable[[Put], None] | None) -> None:
    """The header, and what `fill` puts behind it."""
    _put(fd, 0, 0, np.frombuffer(header.raw, np.uint8))
    if fill is not None:
        fill(partial(_put, fd, header.header_bytes))


def _put(fd: int, body: int, offset: int, data: NDArray[np.uint8]) -> None:
    """Writes all of it, straight from where it lies; one call takes 2 GiB at most."""
    left, at = data.data, body + offset
    while left:
        written = os.pwrite(fd, left, at)
        left, at = left[written:], at + written


def _open_nameless(target: Path, nbytes: int) -> int:
    """A file of `nbytes` allocated bytes in target's directory that has no name yet."""
    if not target.parent.is_dir():
        raise ValueError(f"path: expected a file in a directory that exists, got {target}")
    free = _free_bytes(target.parent)
    if nbytes > free:
        raise _full(target.parent, nbytes, free)
    fd = os.open(target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        with _noticing_full(target.parent, nbytes):
            os.posix_fallocate(fd, 0, nbytes)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _hold(fd: int, target: Path) -> None:
    """Takes the shared lock of a file without a name. Raises MarlcoreError: somebody got at it through /proc."""
    if not try_lock(fd, 0, exclusive=False):
        raise MarlcoreError(f"{target}: another process has locked the segment before it has a name")


def _lasting(target: Path) -> Path:
    """The path of a file that is to stay. Raises ValueError: `sweep` would remove it."""
    if target.parent == SHM_DIR and target.name.startswith(PREFIX):
        raise ValueError(f"path: expected a name without {PREFIX!r} in {SHM_DIR}, where unused ones go, got {target}")
    return target


def _give_name(fd: int, target: Path) -> None:
    directory = os.open(target.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # With a directory descriptor Python calls linkat, which follows the link in /proc to the file.
        os.link(f"/proc/self/fd/{fd}", target.name, dst_dir_fd=directory, follow_symlinks=True)
    except FileExistsError:
        raise ValueError(f"path: expected a file that does not exist yet, got {target}") from None
    finally:
        os.close(directory)


def _sync_directory(directory: Path) -> None:
    """Puts the names in a directory on disk."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _survey(directory: Path, prefix: str, remove: bool) -> list[SegmentFile]:
    """This user's files of a name that begins so; with `remove`, those that no living process holds are removed."""
    found = []
    for path in sorted(directory.glob(prefix + "*")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            continue  # gone meanwhile, somebody else's, or no file: not ours to remove
        try:
            status = os.fstat(fd)
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                continue
            held = not try_lock(fd, 0, exclusive=True) if remove else is_locked(fd, 0)
            if not _same_file(fd, path):
                continue
            if remove and not held:
                path.unlink(missing_ok=True)
            inode = status.st_dev, status.st_ino
            found.append(SegmentFile(path.name, 512 * status.st_blocks, status.st_mtime, held, inode))
        finally:
            os.close(fd)
    return found


def _open_named(path: Path, writable: bool) -> int:
    """Opens a segment's file and holds its shared lock; SegmentNotFound when it was removed meanwhile.

    A lock that is refused says that someone sweeps just now: that may be the end of the file, or only of another name
    that it had, so the name is what decides.
    """
    deadline = time.monotonic() + SWEEP_S
    while True:
        fd = _open_existing(path, writable)
        try:
            locked = try_lock(fd, 0, exclusive=False)
            if locked and _same_file(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)  # a later save took its name between open and lock, or nothing has it any more
        if not locked:
            if time.monotonic() > deadline:
                raise SegmentNotFound(f"{path}: another process has locked the segment to remove it")
            time.sleep(SWEEP_S / 1000)


def _open_existing(path: Path, writable: bool) -> int:
    """Opens a file that may be a segment: a regular one of this user alone."""
    try:
        access = os.O_RDWR if writable else os.O_RDONLY
        fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        raise SegmentNotFound(f"{path}: no such segment") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM):
            raise
        raise SegmentCorrupt(f"{path}: expected a segment, got {error.strerror}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise SegmentCorrupt(f"{path}: expected a regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise SegmentCorrupt(f"{path}: expected a file of this user alone, mode 0600")
        return fd
    except BaseException:
        os.close(fd)
        raise


def _same_file(fd: int, path: Path) -> bool:
    """Whether the path still leads to the opened file: the name may have gone between open and lock."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))


def _unlink_ours(path: Path, fd: int) -> None:
    if _same_file(fd, path):
        path.unlink(missing_ok=True)


def _release(fd: int, owned: str | None, pid: int) -> None:
    """What the end of a Segment leaves to do; a forked child gives back descriptors but no names."""
    try:
        if owned is not None and pid == os.getpid():
            _unlink_ours(Path(owned), fd)
    finally:
        os.close(fd)


def _free_bytes(directory: Path) -> int:
    """Bytes that may be allocated: what the file system has, or the memory limit if that is less."""
    file_system = os.statvfs(directory)
    free = file_system.f_bavail * file_system.f_frsize
    limit = cgroup.memory_limit() if directory == SHM_DIR else None
    return min(free, limit.left) if limit else free


@contextlib.contextmanager
def _noticing_full(directory: Path, nbytes: int) -> Iterator[None]:
    """Raises SharedMemoryFull where the file system says that it is full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG, errno.EDQUOT):
            raise _full(directory, nbytes, _free_bytes(directory)) from None
        raise


def _full(directory: Path, nbytes: int, free: int) -> SharedMemoryFull:
    hint = "; in docker, raise --shm-size or --memory" if directory == SHM_DIR else ""
    return SharedMemoryFull(f"{directory}: {nbytes} bytes asked for, {free} free{hint}")


def invalidate_after_fork(thing: Forkable) -> None:
    """Has `thing.forked()` called in every child forked while it lives."""
    _forkable.add(thing)


def _after_fork() -> None:
    for thing in list(_forkable):
        thing.forked()


os.register_at_fork(after_in_child=_after_fork)
