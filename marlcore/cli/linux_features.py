"""Tries each kernel feature that marlcore needs: a sandbox may lack features that the kernel has.

An attempt is a function of the segments' directory. It raises OSError or MarlcoreError if the feature does not work,
and imports the core only when called, since the core may be broken.
"""

import mmap
import os
import secrets
import select
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple


class Feature(NamedTuple):
    """A feature that the kernel must have: an attempt to use it, its purpose in marlcore, and advice if it fails."""

    attempt: Callable[[Path], None]
    purpose: str
    advice: str


@contextmanager
def _opened(path: Path | str, flags: int) -> Iterator[int]:
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        yield fd
    finally:
        os.close(fd)


def try_nameless_file(directory: Path) -> None:
    with _opened(directory, os.O_TMPFILE | os.O_RDWR):
        pass


def try_naming(directory: Path) -> None:
    """Tries linkat through /proc."""
    from ..memory import PREFIX

    name = f"{PREFIX}doctor-{secrets.token_hex(8)}"  # so that a sweep removes it after a kill
    with _opened(directory, os.O_TMPFILE | os.O_RDWR) as fd, _opened(directory, os.O_PATH | os.O_DIRECTORY) as place:
        try:
            os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=place, follow_symlinks=True)
        finally:
            (directory / name).unlink(missing_ok=True)


def try_allocation(directory: Path) -> None:
    with tempfile.TemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, mmap.PAGESIZE)


def try_locks(directory: Path) -> None:
    """Tries locks that an open file description owns."""
    from ..memory import is_locked, try_lock

    with tempfile.TemporaryFile(dir=directory) as file:
        with _opened(f"/proc/self/fd/{file.fileno()}", os.O_RDWR) as other:
            if not try_lock(other, 0, exclusive=True):
                raise OSError("a free lock cannot be taken")
            if not is_locked(file.fileno(), 0) or try_lock(file.fileno(), 0, exclusive=False):
                raise OSError("a lock does not exclude others")
        if not try_lock(file.fileno(), 0, exclusive=True):
            raise OSError("a lock outlives its holder")


def try_waking(directory: Path, patience: float = 5.0) -> None:
    """Tries to wake a sleeping thread through another mapping of the same file, for at most `patience` seconds."""
    import numpy as np

    from ..memory import LINE, Event

    with tempfile.TemporaryFile(dir=directory) as file:
        file.truncate(LINE)
        sleeper, waker = (Event(np.frombuffer(mmap.mmap(file.fileno(), LINE), np.uint8)) for _ in range(2))
        seen = sleeper.prepare(1)
        with ThreadPoolExecutor(1) as pool:
            slept = pool.submit(sleeper.wait, seen, 2 * patience)
            waker.notify()
            if wait([slept], timeout=patience).not_done:
                raise OSError("a sleeper is not woken through another mapping")
            slept.result()


def try_pidfd(directory: Path) -> None:
    """Tries a descriptor that becomes readable when a process ends."""
    if not hasattr(os, "pidfd_open"):
        raise OSError("this Python was built without os.pidfd_open")
    with os.fdopen(os.pidfd_open(os.getpid())) as pidfd:
        if select.select([pidfd], [], [], 0)[0]:
            raise OSError("a live process is reported as ended")


_TMPFS = "mount a tmpfs at /dev/shm"
_ROOM = "mount a tmpfs with room at /dev/shm"
_WHOLE = "segments appear whole or not at all"
_LOCKS = "use Linux 3.15 or newer, and a sandbox that has these locks"
_PIDFD = "use Linux 5.3 or newer, a Python built on it, and a sandbox that allows pidfd_open"
FEATURES = {
    "O_TMPFILE": Feature(try_nameless_file, _WHOLE, _TMPFS),
    "linkat": Feature(try_naming, _WHOLE, "mount /proc, and a tmpfs at /dev/shm"),
    "fallocate": Feature(try_allocation, "a full /dev/shm is an error, not a signal", _ROOM),
    "OFD locks": Feature(try_locks, "proof that a process is dead", _LOCKS),
    "futex": Feature(try_waking, "readers sleep until a writer commits", "allow the system call futex in the sandbox"),
    "pidfd": Feature(try_pidfd, "the end of a worker is noticed", _PIDFD),
}
