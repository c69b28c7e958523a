"""Files of a run: a reader never sees half of one, damage is noticed, and an error names the file.

A sealed file ends with its own name and a SHA-256 of all that precedes the digest. The text of this seal fits the three
formats that a run writes: it is the last two members of a JSON object, the comment of a zip (a checkpoint, which
`torch.load` still reads), and behind a pickle, whose reader stops earlier.
"""

import functools
import hashlib
import json
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from itertools import chain
from pathlib import Path
from typing import Any

from ...checks import brief
from ...processes import opener

_DIGITS = 64
_SEAL = re.compile(rb'"file": "([^"]*)",\s*"sha256": "([0-9a-f]{64})"\s*\}\n\Z')
_LONGEST = 4096  # bytes of a seal
ZIP = b"PK\x03\x04"  # its first bytes

CODE = ("config.json", "checkpoints")  # of a run's directory: modules that are imported, and what is unpickled

log = logging.getLogger(__name__)
_warn_once = functools.cache(log.warning)


def make_directory(path: Path) -> None:
    """Makes a directory that only this user may write, whatever the umask. Raises FileExistsError."""
    path.mkdir(mode=0o755)


def remove_unfinished(path: Path) -> None:
    """Removes what a killed process left of a write to `path`; a write of one that still lives fails."""
    for left in path.parent.glob(f".{escape(path.name)}.*.new"):
        left.unlink(missing_ok=True)


def write_atomically(path: Path, *data: bytes | memoryview, check: Callable[[], None] | None = None) -> None:
    """Makes `path` hold `data`: even after a crash or an OSError, a reader sees all of it or the old content.

    Without `check`, the file has one writer. `check` is called last; its error keeps the old content.
    """
    if check is None:
        remove_unfinished(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    kept = "the earlier one is kept" if path.exists() else "there is no earlier one"
    try:
        with naming(path, f"{sum(map(len, data)):,} bytes were not written, {kept}"):
            with open(aside, "xb", opener=opener) as file:
                file.writelines(data)
                file.flush()
                os.fsync(file.fileno())
            if check is not None:
                check()
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def write_sealed(path: Path, data: bytes, **options: Any) -> None:
    """Writes a pickle or a zip with a seal; see `write_atomically`."""
    start = f', "file": {json.dumps(path.name)}, "sha256": "'.encode()
    end = b'"}\n'
    if data.startswith(ZIP):  # the seal becomes its comment, whose length ends a zip
        length = (len(start) + _DIGITS + len(end)).to_bytes(2, "little")
        _write_sealed(path, memoryview(data)[:-2], length + start, end, **options)
    else:
        _write_sealed(path, data, start, end, **options)


def write_json(path: Path, members: Mapping[str, Any], indent: int | None = None) -> None:
    """Writes a JSON object with a seal as its last members; paths become strings."""
    sealed = {**members, "file": path.name, "sha256": ""}
    text = json.dumps(sealed, indent=indent, allow_nan=False, default=os.fspath).encode() + b"\n"
    start, quote, end = text.rpartition(b'"')
    _write_sealed(path, start, b"", quote + end)


def _write_sealed(path: Path, data: bytes | memoryview, start: bytes, end: bytes, **options: Any) -> None:
    digest = hashlib.sha256(data)
    digest.update(start)
    write_atomically(path, data, start, digest.hexdigest().encode(), end, **options)


def read_sealed(path: Path, *, own_name: bool = True) -> bytes:
    """A sealed file with its seal. Raises ValueError: it is damaged, or with `own_name` a copy of another. OSError."""
    data = read_regular(path)
    if fault := _fault(path, data, own_name):
        raise ValueError(f"{str(path)!r}: {fault}")
    return data


def read_json(path: Path, *, editable: bool = False) -> dict[str, Any]:
    """The members that `write_json` wrote; a change of an `editable` file is logged. Raises: as `read_sealed`."""
    data = read_regular(path) if editable else read_sealed(path)
    if editable and (fault := _fault(path, data, own_name=True)):
        _warn_once(f"{str(path)!r}: {fault}; it is taken as it is")
    try:
        members = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r}: expected a JSON object, got invalid JSON ({error})") from None
    if not isinstance(members, dict):
        raise ValueError(f"{str(path)!r}: expected a JSON object, got {brief(members)}")
    return {name: value for name, value in members.items() if name not in ("file", "sha256")}


def read_regular(path: Path) -> bytes:
    """The bytes of a file. Raises: ValueError: it is a pipe or a device, which may never end. OSError."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
        check_regular(path, file.fileno())
        return file.read()


def check_regular(path: Path, fd: int) -> None:
    """Raises ValueError: the open file is a pipe or a device."""
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise ValueError(f"{str(path)!r}: expected a regular file, got a pipe or a device")


def _fault(path: Path, data: bytes, own_name: bool) -> str:
    """The contradiction between a file and its seal; empty if they agree."""
    seal = _SEAL.search(data, max(len(data) - _LONGEST, 0))
    if seal is None or hashlib.sha256(memoryview(data)[: seal.start(2)]).hexdigest().encode() != seal[2]:
        return "expected the file as the run wrote it, got a changed or damaged one"
    if own_name and seal[1] != json.dumps(path.name)[1:-1].encode():
        return f"expected {path.name}, got a copy of {seal[1].decode(errors='replace')}"
    return ""


@contextmanager
def naming(path: Path, kept: str) -> Iterator[None]:
    """Adds to an error of a write, which names no file, the file's name and what was kept."""
    try:
        yield
    except OSError as error:
        if error.errno is None:  # a signal handler's
            raise
        raise OSError(error.errno, f"{error.strerror or error}; {kept}", str(path)) from error


def check_trusted(run_dir: str | Path, trust: bool = False) -> Path:
    """The real path of a run's directory. Raises ValueError, unless `trust`: another user could have changed it."""
    root = Path(os.path.realpath(run_dir))
    inside = [Path(folder, name) for folder, *names in os.walk(root / "checkpoints") for name in chain(*names)]
    for path in () if trust else (root, *(root / name for name in CODE), *inside):  # a walk does not follow links
        if not os.path.lexists(path):
            continue
        status = os.lstat(path)
        if status.st_uid not in (os.geteuid(), 0):
            reason = f"belongs to user {status.st_uid}"
        elif stat.S_ISLNK(status.st_mode):
            reason = "is a link"
        elif status.st_mode & 0o022:
            reason = f"has mode {stat.S_IMODE(status.st_mode):04o}; chmod -R go-w repairs that"
        else:
            continue
        raise ValueError(
            f"trust: expected a run that only this user can write, since loading it executes code, got {str(path)!r}, "
            f"which {reason}; trust=True or --trust loads it all the same"
        )
    return root
