"""Open and mapped files: one object owns each file, from before it is opened or mapped until it is released."""

import errno
import os
import resource
from pathlib import Path
from typing import Any

from ..closing import Closing
from ..errors import MarlcoreError, SharedMemoryFull
from .native import ffi, lib

OWN_FILES = "/proc/self/fd"


class File(Closing):
    """An open file, to which `link` can give a name. It closes at `close`, or when its last reference is gone.

    The object exists before the descriptor, and C code opens, names and closes the file. So an exception between two
    steps of Python neither leaks a descriptor nor closes a descriptor number that another file got meanwhile.
    """

    def __init__(self, name: str | os.PathLike[str] = "") -> None:
        path = os.fsencode(name) + b"\0"
        raw = ffi.new("struct mc_file *", {"name": len(path)})
        ffi.memmove(raw.name, path, len(path))
        raw.fd = -1
        self.name = name
        self.raw = ffi.gc(raw, lib.mc_file_close)

    @property
    def fd(self) -> int:
        return int(self.raw.fd)

    def open(self, path: str | os.PathLike[str], flags: int, mode: int = 0o600) -> None:
        """Opens a file; call it only once. Child programs do not inherit the file.

        Raises OSError; MarlcoreError if too many files are open.
        """
        encoded = os.fsencode(path)
        while (code := lib.mc_file_open(self.raw, encoded, flags, mode)) == -errno.EINTR:
            continue  # Python's signal handlers run here
        _raise_os_error(code, path)

    def link(self) -> None:
        """Gives the nameless file its name, which `close` removes. Raises OSError; MarlcoreError without /proc."""
        code = lib.mc_file_link(self.raw)
        _raise_os_error(code, self.name if os.path.isdir(OWN_FILES) else OWN_FILES)

    def keep_name(self) -> None:
        """Makes `close` leave the name in place."""
        self.raw.owner = 0

    def allocate(self, nbytes: int) -> None:
        """Allocates every byte of the file and keeps its content. Raises OSError."""
        _raise_os_error(lib.mc_file_allocate(self.fd, nbytes), self.name)

    def sync(self) -> None:
        """Waits until the disk has everything written to the file, also through mappings. Raises OSError."""
        os.fdatasync(self.fd)

    def close(self) -> None:
        """Closes the file and removes its name; may be repeated. Raises OSError if the name remains."""
        _raise_os_error(lib.mc_file_close(self.raw), self.name)

    def closer(self) -> object:
        """Returns an object whose last reference closes the file, in C, where no exception comes between."""
        return ffi.gc(self.raw, lib.mc_file_close)

    def forked(self) -> None:
        """Closes the descriptor in a forked child; the parent keeps its locks."""
        self.close()


def sync_directory(path: Path) -> None:
    """Waits until the directory's entries are on disk. Raises OSError."""
    with File() as directory:
        directory.open(path, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(directory.fd)


class MappedFile:
    """Maps the first bytes of a file, until this object and every array that `numpy.asarray` made of it are gone.

    As with `File`, the object exists before the mapping, and the C core maps and unmaps.
    """

    def __init__(self, fd: int, path: Path, nbytes: int, writable: bool) -> None:
        """Maps `nbytes` bytes. Raises SharedMemoryFull if too little address space is left."""
        self._raw = ffi.gc(ffi.new("struct mc_mapping *"), lib.mc_mapping_close)
        self._path, self._nbytes, self._writable = path, nbytes, writable
        self.attach(fd)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        address = int(ffi.cast("uintptr_t", self._raw.address))
        return {"version": 3, "typestr": "|u1", "shape": (self._raw.nbytes,), "data": (address, not self._writable)}

    def attach(self, fd: int) -> None:
        """Maps the file; after `detach`, at the same address, so arrays show the shared memory again."""
        code = lib.mc_mapping_open(self._raw, fd, self._nbytes, self._writable)
        if code == -errno.ENOMEM:
            asked = f"{self._nbytes} bytes of address space asked for"
            raise SharedMemoryFull(f"{self._path}: {asked}, fewer are free; raise `ulimit -v`")
        _raise_os_error(code, self._path)

    def detach(self, fd: int) -> None:
        """Replaces the shared mapping in a forked child by a private copy, which neither locks nor changes the file.

        Arrays stay valid. The child keeps the shared mapping and holds the file's locks if /proc is not mounted, no
        descriptor is free, or the kernel grants no private memory (`vm.overcommit_memory` is 2).
        """
        lib.mc_mapping_detach(self._raw, fd)


def too_many_files(path: str | os.PathLike[str]) -> MarlcoreError:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    got = f"none below the limit of {limit}; raise `ulimit -n`"
    return MarlcoreError(f"{os.fspath(path)}: expected a free file descriptor, got {got}")


def _raise_os_error(code: int, path: str | os.PathLike[str]) -> None:
    if code in (-errno.EMFILE, -errno.ENFILE):
        raise too_many_files(path)
    if code == -errno.ENOENT and os.fspath(path).startswith(OWN_FILES) and not os.path.isdir(OWN_FILES):
        raise MarlcoreError(f"{OWN_FILES}: expected /proc mounted, since shared memory is named and locked through it")
    if code:
        raise OSError(-code, os.strerror(-code), os.fspath(path))


def is_descriptor(path: Path) -> bool:
    """Returns whether the path is an open descriptor of a process, /proc/<pid>/fd/<n>, rather than a file's name."""
    return path.match("/proc/*/fd/*")


def same_file(fd: int, path: Path) -> bool:
    """Returns whether the path still leads to the opened file."""
    try:
        there = os.stat(path, follow_symlinks=is_descriptor(path))
    except FileNotFoundError:
        return False
    return os.path.samestat(there, os.fstat(fd))
