"""Opens the directory of a run, a population or a psro, unless another user could have put code there."""

import os
import stat
from itertools import chain
from pathlib import Path

from ..checks import absolute
from ..config import SINKS

FOLDERS = ("checkpoints", "logs", *SINKS)  # folders in which a run writes; a sink's folder has its name
CODE = ("config.json", "population.json", "psro.json", "checkpoints")  # their content may be executed or trusted
# The uses of a directory; docs/security.md has a table of each use's functions and commands.
UNPICKLED = "run.pickle is unpickled, which can execute anything"
IMPORTED = "modules and functions that config.json names are imported"
CONTINUED = "the numbers of population.json are trusted"
COMPARED = "the files are compared with the program's settings"
WEIGHTS = "tensors, numbers and descriptions are read"
RECORD = "metrics, settings and progress are read"
OWN = (UNPICKLED, IMPORTED, CONTINUED)  # a directory that another user could have changed is refused


def open_run(run_dir: str | os.PathLike[str], use: str = COMPARED, trust: bool | None = None) -> Path:
    """Checks a directory before it is opened; returns its absolute path or, for a `use` in OWN, its real path.

    `trust` is True to skip these checks; None if the calling function has no such argument. Raises ValueError if
    `run_dir` is not a path, or if a folder in it is another user's link; for a `use` in OWN, also if another user
    could have changed the directory.
    """
    label = "resume" if use == COMPARED else "run_dir"
    root = absolute(run_dir, label)
    for folder in () if trust else (root / name for name in FOLDERS):
        if folder.is_symlink() and os.lstat(folder).st_uid != os.geteuid():
            raise ValueError(f"{label}: expected folders, not another user's links, got {str(folder)!r}")
    if use not in OWN:
        return root
    root = Path(os.path.realpath(root))
    inside = [Path(folder, name) for folder, *names in os.walk(root / "checkpoints") for name in chain(*names)]
    for path in () if trust else (root, *(root / name for name in CODE), *inside):  # a walk does not follow links
        if os.path.lexists(path) and (reason := _doubt(os.lstat(path))):
            raise ValueError(
                "trust: expected a run that only this user can write, since its files are trusted or executed, "
                f"got {str(path)!r}, which {reason}"
                + ("" if trust is None else "; trust=True or --trust loads it all the same")
            )
    return root


def _doubt(status: os.stat_result) -> str:
    """Returns why another user could have changed a file; "" if no other user could."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_mode & 0o022:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}; chmod -R go-w repairs that"
    return ""
