"""Keeps compiled kernels in a directory for each interpreter, processor, compiler and state of the sources.

    ~/.cache/marlcore/kernels/cpython-311-znver3-5be1a0f2-90c1d8ab34e7f6d2/
        package-1f0a33c2    a link to each installation of these sources; the directory's time is its last use
        *.nbi, *.nbc        compiled kernels, which Numba writes

Compiled kernels are code: a directory that is a link, belongs to another user, or lets others write is refused.
"""

import errno
import hashlib
import logging
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ..errors import suppress_failed_calls
from ..regular_files import read_regular

UNUSED_S = 90 * 86_400
PACKAGE = Path(__file__).absolute().parents[1]
LONGEST = 2**20  # bytes of a source
SOURCES = ("__init__.py", "kernels/*.py", "planning/kernels/*.py")  # the version, and the rooms with kernels


def open_directory(machine: str) -> Path | None:
    """Returns the directory for a processor and compiler below the first usable root; None if no root is usable."""
    for root in roots():
        with suppress_failed_calls():
            return prepare(root / f"{sys.implementation.cache_tag}-{machine}-{_digest(PACKAGE)}")
    logging.getLogger("marlcore").warning(
        "kernels cannot be kept in %s, so each process spends some seconds on compiling them: "
        "set NUMBA_CACHE_DIR to a directory that only this user can write",
        " and ".join(map(str, roots())),
    )
    return None


def prepare(directory: Path) -> Path:
    """Makes a directory if missing; returns it. Raises OSError if the disk is full or others could write there."""
    for path in (*directory.parents[1::-1], directory):
        path.mkdir(0o700, parents=True, exist_ok=True)
        if not _is_private(path):
            raise PermissionError(errno.EPERM, "expected a directory that only this user may write", str(path))
    with suppress_failed_calls(errno.EEXIST):
        (directory / f"package-{hashlib.sha256(os.fsencode(PACKAGE)).hexdigest()[:8]}").symlink_to(PACKAGE)
    os.utime(directory)
    with tempfile.TemporaryFile(dir=directory) as file:
        file.write(bytes(1 << 16))
    return directory


def roots() -> Iterator[Path]:
    """Yields the places to try, in order; the last is below the directory for temporary files."""
    asked, user = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", "")
    for place in (asked and os.path.abspath(asked), user, os.path.expanduser("~/.cache")):
        if place and os.path.isabs(place):  # there may be no home
            yield Path(place, "marlcore", "kernels")
    yield Path(tempfile.gettempdir(), f"marlcore-{os.geteuid()}", "kernels")


def stale_directories() -> list[Path]:
    """Returns this user's directories that have been unused for 90 days, or whose installations are gone or changed."""
    known = [root for root in dict.fromkeys(roots()) if _is_private(root.parent) and _is_private(root)]
    return [path for root in known for path in sorted(root.iterdir()) if _is_private(path) and _is_stale(path)]


def _is_stale(directory: Path) -> bool:
    packages = [*directory.glob("package-*")]  # empty if the directory was just made
    unused = time.time() - directory.stat().st_mtime > UNUSED_S
    return unused or (bool(packages) and not any(_has_sources(link, directory.name) for link in packages))


def _has_sources(link: Path, name: str) -> bool:
    with suppress(ValueError), suppress_failed_calls():  # the place may be another user's now, and hold anything
        return name.endswith(f"-{_digest(link.readlink())}")
    return False


def _digest(package: Path) -> str:
    """Returns the digest of an installation's version and of its kernels' sources."""
    sources = [read_regular(file, LONGEST) for pattern in SOURCES for file in sorted(package.glob(pattern))]
    return hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]


def _is_private(path: Path) -> bool:
    """Returns whether the path is a directory of this user, not a link, to which no other user may write."""
    with suppress_failed_calls():
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
    return False
