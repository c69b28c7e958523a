"""Loading a run executes code that its directory names or holds, so a directory that others may change is refused."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

CODE = ("config.json", "checkpoints")  # of a run's directory: modules that are imported, and what is unpickled


def check_trusted(run_dir: str | Path, trust: bool = False) -> Path:
    """The real path of a run's directory, which is to be read, its config.json and all in `checkpoints` checked.

    Each must belong to this user or to root, and only its owner may write it; links in the directory are refused, since
    other users may write where they lead. A link to the directory itself is followed.

    Args:
        trust: check nothing.

    Raises: ValueError: another user could have changed the run. OSError: a file cannot be examined.
    """
    root = Path(os.path.realpath(run_dir))
    for path in () if trust else _code(root):
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


def _code(root: Path) -> Iterator[Path]:
    for path in (root, *(root / name for name in CODE)):
        if path.is_symlink() or path.exists():
            yield path
    for folder, folders, files in os.walk(root / "checkpoints"):  # which does not follow links
        yield from (Path(folder, name) for name in (*folders, *files))
