"""Segments: files in /dev/shm that appear whole or not at all, and never outlive their last process unseen.

A segment is a header (magic, layout version, sizes, nonce, checksum, a JSON description) padded to pages, then
a body that starts zeroed. Every process that maps a segment holds a shared kernel lock on byte 0 of its file:
`sweep` removes a segment only when it obtains the exclusive lock, so only when nobody has it mapped, even after
SIGKILL of everyone. Bytes 1.. are the locks of what lies in the body: see lane.py.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import mmap
import os
import re
import secrets
import stat
import time
import weakref
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
from .files import File, too_many_files
from .header import Header

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

    def __init__(self, file: File, path: Path, header: Header, writable: bool = True) -> None:
        self.path = path
        self.nonce = header.nonce
        self.description = header.description
        self.handle = SegmentHandle(str(path), header.nonce, header.layout)
        self.nbytes = header.segment_bytes
        mapping = _map(file.fd, path, self.nbytes, writable)
        self.body: NDArray[np.uint8] = np.frombuffer(mapping, np.uint8, offset=header.header_bytes)
        self._file = file
        self._closed: str | None = None
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
            SharedMemoryFull: the file system, the memory limit or the address space has no room; nothing was created.
            ValueError: the name has other characters than letters, digits, "_" and ".", or path exists.
            MarlcoreError: another process locked the file before it had a name, or no descriptor is free.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"name: expected letters, digits, '_' and '.', got {name!r}")
        if path is None:
            _sweep_once()
        header = Header.build(secrets.randbits(64), description, body_bytes)
        in_shm = SHM_DIR / f"{PREFIX}{name}-{header.nonce:016x}"
        target = _lasting(Path(path).absolute()) if path is not None else in_shm
        file = _open_nameless(target, header.segment_bytes)
        try:
            with _noticing_full(target.parent, header.segment_bytes):  # as in replace_file
                _write(file.fd, header, fill)
            _hold(file, target)
            segment = cls(file, target, header)
            _give_name(file, target)
            if path is not None:
                file.keep_name()
            return segment
        except BaseException:
            file.close()
            raise

    @classmethod
    def attach(cls, handle: SegmentHandle | str | os.PathLike[str], writable: bool = True) -> Segment:
        """Maps the segment that a handle names, or the one at a path; to look at only, unless it is `writable`.

        Raises:
            SegmentNotFound: nothing is there. SegmentCorrupt: no segment, or not this user's alone.
            StaleHandle: another segment took the name. LayoutMismatch: it is laid out otherwise.
            SharedMemoryFull: there is no room to fill the file's holes, or no address space to map it.
            MarlcoreError: no descriptor is free.
        """
        path = Path(handle.path if isinstance(handle, SegmentHandle) else handle).absolute()
        file = _open_named(path, writable)
        try:
            header = Header.read(file.fd, path)
            if isinstance(handle, SegmentHandle) and header.nonce != handle.nonce:
                raise StaleHandle(f"{path}: the handle's segment is gone, another one took its name")
            if isinstance(handle, SegmentHandle) and header.layout != handle.layout:
                raise LayoutMismatch(f"{path}: the segment's layout is not the one of the handle")
            _check_allocated(file, path, writable)
            return cls(file, path, header, writable)
        except BaseException:
            file.close()
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
        return _same_file(self._file.fd, path)

    def lock(self, offset: int, exclusive: bool = True) -> File | None:
        """An open file that holds the lock of byte `offset`, or None when another one is in its way."""
        self.check_open()
        file = File()
        file.open(f"/proc/self/fd/{self._file.fd}", os.O_RDWR)
        if try_lock(file.fd, offset, exclusive):
            return file
        file.close()
        return None

    def is_locked(self, offset: int) -> bool:
        """Whether a living process holds a lock of byte `offset`, this one included."""
        self.check_open()
        return is_locked(self._file.fd, offset)

    def close(self) -> None:
        """Lets go of the segment; the memory is unmapped when the last view of it is gone."""
        self._let_go("it was closed")

    def unlink(self) -> None:
        """Removes the segment's name; processes that have it mapped keep it. Harmless when repeated."""
        if self._closed is None:
            _unlink_ours(self.path, self._file.fd)
            return
        with contextlib.suppress(MarlcoreError):  # gone, or another file has the name now
            again = Segment.attach(self.handle)
            again.unlink()
            again.close()

    def forked(self) -> None:
        """In a forked child: lets go, and says so when used."""
        self._let_go("it was opened before a fork; attach to its handle in the child")

    def _let_go(self, why: str) -> None:
        """Each step may be done already: by an earlier call, or by one that was interrupted."""
        self._closed = self._closed or why
        vars(self).pop("body", None)
        self._file.close()


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
    header = Header.build(secrets.randbits(64), description, body_bytes)
    _survey(target.parent, ASIDE, remove=True)
    aside = target.with_name(f"{ASIDE}{header.nonce:016x}")
    with _open_nameless(target, header.segment_bytes, aside) as file:
        with _noticing_full(target.parent, header.segment_bytes):  # some file systems allocate when they are written to
            _write(file.fd, header, fill)
            os.fsync(file.fd)
        _hold(file, target)  # so that nobody else takes it for left behind
        _give_name(file, aside)
        aside.replace(target)
    _sync_directory(target.parent)


@functools.cache
def _sweep_once() -> None:
    """Whoever makes the first segment of a process clears away what dead ones left."""
    sweep()


def _write(fd: int, header: Header, fill: Callable[[Put], None] | None) -> None:
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


def _open_nameless(target: Path, nbytes: int, name: Path | None = None) -> File:
    """A file of `nbytes` allocated bytes in target's directory; `name`, or target, is what it is to be called."""
    if not target.parent.is_dir():
        raise ValueError(f"path: expected a file in a directory that exists, got {target}")
    free = _free_bytes(target.parent)
    if nbytes > free:
        raise _full(target.parent, nbytes, free)
    file = File(name or target)
    try:
        file.open(target.parent, os.O_TMPFILE | os.O_RDWR)
        with _noticing_full(target.parent, nbytes):
            os.posix_fallocate(file.fd, 0, nbytes)
        return file
    except BaseException:
        file.close()
        raise


def _map(fd: int, path: Path, nbytes: int, writable: bool) -> mmap.mmap:
    """Raises SharedMemoryFull: no address space. MarlcoreError: no descriptor for the mapping's own copy."""
    try:
        return mmap.mmap(fd, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise SharedMemoryFull(
                f"{path}: {nbytes} bytes of address space asked for, less free; raise `ulimit -v`"
            ) from None
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise too_many_files(path) from None
        raise


def _check_allocated(file: File, path: Path, writable: bool) -> None:
    """Sees to it that each page of a file has memory or disk of its own: the kernel ends a process that touches one
    for which there is none.

    Neither number alone says where holes are. Compressed files have fewer blocks than bytes and no hole; some file
    systems count their own index blocks too, which hides holes; and SEEK_HOLE takes for a hole what is allocated
    but was never written, as all of a new segment. Only in /dev/shm are blocks exact.
    """
    status = os.fstat(file.fd)
    missing = status.st_size - 512 * status.st_blocks
    if missing <= 0 and (not writable or status.st_dev == os.stat(SHM_DIR).st_dev):
        return
    if os.lseek(file.fd, 0, os.SEEK_HOLE) == status.st_size:
        return
    if not writable:
        raise SegmentCorrupt(f"{path}: expected a file without holes, got one of {missing} bytes; "
                             "copy it with `cp --sparse=never`")  # fmt: skip
    free = _free_bytes(path.parent)
    if missing > free:
        raise _full(path.parent, missing, free)
    with _noticing_full(path.parent, missing):
        _allocate(file, status.st_size, path)


def _allocate(file: File, nbytes: int, path: Path) -> None:
    """Fills the holes of a file that others may be writing to: never by writing. Raises SegmentCorrupt: it cannot."""
    try:
        file.allocate(nbytes)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        raise SegmentCorrupt(f"{path}: expected a file without holes, got one on a file system that cannot fill them; "
                             "copy it with `cp --sparse=never`") from None  # fmt: skip


def _hold(file: File, target: Path) -> None:
    """Takes the shared lock of a file without a name. Raises MarlcoreError: somebody got at it through /proc."""
    if not try_lock(file.fd, 0, exclusive=False):
        raise MarlcoreError(f"{target}: another process has locked the segment before it has a name")


def _lasting(target: Path) -> Path:
    """The path of a file that is to stay. Raises ValueError: `sweep` would remove it."""
    if target.parent == SHM_DIR and target.name.startswith(PREFIX):
        raise ValueError(f"path: expected a name without {PREFIX!r} in {SHM_DIR}, where unused ones go, got {target}")
    return target


def _give_name(file: File, target: Path) -> None:
    try:
        file.link()
    except FileExistsError:
        raise ValueError(f"path: expected a file that does not exist yet, got {target}") from None


def _sync_directory(directory: Path) -> None:
    """Puts the names in a directory on disk."""
    with File() as file:
        file.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(file.fd)


def _survey(directory: Path, prefix: str, remove: bool) -> list[SegmentFile]:
    """This user's files of a name that begins so; with `remove`, those that no living process holds are removed."""
    found = []
    for name in sorted(_names(directory)):
        if name.startswith(prefix):
            with File() as file:
                one = _survey_one(file, directory / name, remove)
            if one is not None:
                found.append(one)
    return found


def _names(directory: Path) -> list[str]:
    """What is in a directory; nothing when it is none."""
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise too_many_files(directory) from None
        raise


def _survey_one(file: File, path: Path, remove: bool) -> SegmentFile | None:
    """See `_survey`; None when it is gone meanwhile, somebody else's, or no file: not ours to remove."""
    try:
        file.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    status = os.fstat(file.fd)
    if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
        return None
    held = not try_lock(file.fd, 0, exclusive=True) if remove else is_locked(file.fd, 0)
    if not _same_file(file.fd, path):
        return None
    if remove and not held:
        path.unlink(missing_ok=True)
    inode = status.st_dev, status.st_ino
    return SegmentFile(path.name, 512 * status.st_blocks, status.st_mtime, held, inode)


def _open_named(path: Path, writable: bool) -> File:
    """Opens a segment's file and holds its shared lock; SegmentNotFound when it was removed meanwhile.

    A lock that is refused says that someone sweeps just now: that may be the end of the file, or only of another name
    that it had, so the name is what decides.
    """
    deadline = time.monotonic() + SWEEP_S
    while True:
        file = _open_existing(path, writable)
        try:
            locked = try_lock(file.fd, 0, exclusive=False)
            if locked and _same_file(file.fd, path):
                return file
        except BaseException:
            file.close()
            raise
        file.close()  # a later save took its name between open and lock, or nothing has it any more
        if not locked:
            if time.monotonic() > deadline:
                raise SegmentNotFound(f"{path}: another process has locked the segment to remove it")
            time.sleep(SWEEP_S / 1000)


def _open_existing(path: Path, writable: bool) -> File:
    """Opens a file that may be a segment: a regular one of this user alone."""
    file = File()
    try:
        file.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_NOFOLLOW | os.O_NONBLOCK)
        status = os.fstat(file.fd)
        if not stat.S_ISREG(status.st_mode):
            raise SegmentCorrupt(f"{path}: expected a regular file")
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise SegmentCorrupt(f"{path}: expected a file of this user alone, mode 0600")
        return file
    except (FileNotFoundError, NotADirectoryError):
        raise SegmentNotFound(f"{path}: no such segment") from None
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EACCES, errno.EPERM):
            raise
        raise SegmentCorrupt(f"{path}: expected a segment, got {error.strerror}") from None
    except BaseException:
        file.close()
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


def _at_exit() -> None:
    """Segments that were never closed: nothing is sure to be collected when a process ends."""
    for thing in list(_forkable):
        if isinstance(thing, Segment):
            thing.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
