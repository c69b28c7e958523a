"""Files of a run: a reader never sees half a file, detects damage, and names the file in errors.

A sealed file ends with a seal: its own name, and a SHA-256 of all bytes before the digest. The seal is the last two
members of a JSON object, the comment of a zip (a checkpoint, which `torch.load` can still read), or the bytes after a
pickle, whose reader stops before them.
"""

import functools
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import Any

from ..checks import brief, printable
from ..processes import opener
from ..regular_files import naming, open_regular, read_regular

_DIGITS = 64
_SEAL = re.compile(rb'"file": "([^"]*)",\s*"sha256": "([0-9a-f]{64})"\s*\}\n\Z')
_LONGEST = 4096  # bytes of a seal
_MOST = 2**27  # bytes of a JSON file
ZIP = b"PK\x03\x04"  # the first bytes of a zip

log = logging.getLogger(__name__)
_warn_once = functools.cache(log.warning)


def remove_unfinished(path: Path) -> None:
    """Removes unfinished writes to `path` by killed processes. A live process that is writing there then fails."""
    for left in path.parent.glob(f".{escape(path.name)}.*.new"):
        left.unlink(missing_ok=True)


def write_atomically(path: Path, *data: bytes | memoryview, check: Callable[[], None] | None = None) -> None:
    """Replaces the content of `path` by `data`; even after a crash, a reader sees the whole old or new content.

    `check` is called just before the replacement; if it raises, the old content stays. Without `check`, only one
    process may write.
    """
    if check is None:
        remove_unfinished(path)
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    earlier = "the earlier file is kept" if path.exists() else "there is no earlier file"
    try:
        with naming(path, f"{sum(map(len, data)):,} bytes were not written, {earlier}"):
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
    if data.startswith(ZIP):  # the seal becomes the zip's comment, after the comment's length
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


def read_sealed(path: Path, *, own_name: bool = True, most: int | None = None) -> bytes:
    """Reads a sealed file and its seal. Raises OSError, or ValueError if it is damaged or, with `own_name`, a copy."""
    with open_regular(path) as file:
        file.seek(max(os.fstat(file.fileno()).st_size - _LONGEST, 0))
        sealed = _SEAL.search(file.read(_LONGEST))
    data = read_regular(path, most) if sealed else b""  # a file without a seal may be a sparse one of gigabytes
    if fault := _fault(path, data, own_name):
        raise ValueError(f"{str(path)!r}: {fault}")
    return data


def read_json(path: Path, *, editable: bool = False) -> dict[str, Any]:
    """Returns the members that `write_json` wrote. Raises as `read_sealed` does.

    An `editable` file may have been changed by hand; a warning then says so.
    """
    data = read_regular(path, _MOST) if editable else read_sealed(path, most=_MOST)
    if editable and (fault := _fault(path, data, own_name=True)):
        _warn_once(f"{str(path)!r}: {fault}; it is used all the same")
    try:
        members = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r}: expected a JSON object, got invalid JSON ({error})") from None
    if not isinstance(members, dict):
        raise ValueError(f"{str(path)!r}: expected a JSON object, got {brief(members)}")
    return {name: value for name, value in members.items() if name not in ("file", "sha256")}


@contextmanager
def believed(expected: str, folder: Path, name: str) -> Iterator[None]:
    """Turns errors in a `with` block that reads a file into a ValueError: "EXPECTED, got FOLDER (NAME: the error)"."""
    try:
        yield
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, OSError) as error:
        raise ValueError(f"{expected}, got {str(folder)!r} ({name}: {printable(str(error))})") from None


def _fault(path: Path, data: bytes, own_name: bool) -> str:
    """Returns what is wrong with a file or its seal; "" if they agree."""
    seal = _SEAL.search(data, max(len(data) - _LONGEST, 0))
    if seal is None or hashlib.sha256(memoryview(data)[: seal.start(2)]).hexdigest().encode() != seal[2]:
        return "expected the file as the run wrote it, got a changed or damaged one"
    if own_name and seal[1] != json.dumps(path.name)[1:-1].encode():
        return f"expected {path.name}, got a copy of {printable(seal[1].decode(errors='replace'))}"
    return ""
