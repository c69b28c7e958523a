"""The space for segments: the number of bytes that may be allocated, and the error if there are too few."""

import contextlib
import errno
import functools
import logging
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

from .. import cgroup
from ..errors import SharedMemoryFull
from ..regular_files import mode_of
from ..shm import SHM_DIR

log = logging.getLogger(__name__)


def check_shm_dir() -> None:
    """Raises ValueError if the path of the directory of segments is not absolute or leads to no directory."""
    if not SHM_DIR.is_absolute() or not stat.S_ISDIR(mode_of(SHM_DIR)):
        raise ValueError(f"MARLCORE_SHM_DIR: expected the absolute path of a directory, got '{SHM_DIR}'")


def free_bytes(directory: Path) -> int:
    """Returns how many bytes may be allocated: the lesser of the file system's and the memory limit's free bytes."""
    file_system = os.statvfs(directory)
    free = file_system.f_bavail * file_system.f_frsize
    limit = cgroup.memory_limit() if directory == SHM_DIR else None
    return min(free, limit.left) if limit else free


@contextlib.contextmanager
def noticing_full(directory: Path, nbytes: int) -> Iterator[None]:
    """Raises SharedMemoryFull if a `with` block fails because the file system is full or a file would be too large."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            most = "the file system allows fewer"
            if limit != resource.RLIM_INFINITY:
                most = f"the limit of a file is {limit}; raise `ulimit -f`"
            raise SharedMemoryFull(f"{directory}: {nbytes} bytes asked for in one file, {most}") from None
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT):
            raise full(directory, nbytes, free_bytes(directory)) from None
        raise


def full(directory: Path, nbytes: int, free: int) -> SharedMemoryFull:
    hint = "; in docker, raise --shm-size or --memory" if directory == SHM_DIR else ""
    return SharedMemoryFull(f"{directory}: {nbytes} bytes asked for, {free} free{hint}")


@functools.cache
def notice_spill(directory: Path) -> None:
    """Logs, once per process, that segments without room in /dev/shm become files in this directory."""
    log.warning("%s has no room: buffers are put into unlinked files in %s", SHM_DIR, directory)
