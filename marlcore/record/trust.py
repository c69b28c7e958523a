"""The ways to open the directory of a run, a population or a psro, and the code that each of them executes."""

import os
import stat
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from ..checks import absolute

FOLDERS = ("checkpoints", "logs", "tensorboard", "wandb")  # folders in which a run writes
CODE = ("config.json", "population.json", "psro.json", "checkpoints")  # their content may be executed or believed


@dataclass(frozen=True)
class Way:
    """A way in which functions and commands, its `doors`, open a directory; docs/security.md lists all ways."""

    doors: tuple[str, ...]
    reads: str
    executes: str = "nothing"
    own: bool = False  # refuse a directory that another user could have changed


UNPICKLED = Way(
    ("load_policy", "evaluate", "psro(resume=)", "marlcore eval", "marlcore export"),
    "`checkpoints/run.pickle`, `*.pt`",
    "`run.pickle`, which holds the environment function, the algorithms and the settings",
    own=True,
)
IMPORTED = Way(("marlcore train --resume",), "all files", "`config.json`, which names modules and functions", own=True)
CONTINUED = Way(
    ("train_population(resume=)",), "`population.json`: numbers, and choices that the program offers", own=True
)
COMPARED = Way(("train(resume=)", "start(resume=)", "train_offline(resume=)"), "all files but `run.pickle`")
WEIGHTS = Way(
    ("load_policy(weights_only=True)", "marlcore export --weights-only", "init_from=", "self_play.anchors"),
    "`checkpoints/policies.json`, `*.pt`",
)
RECORD = Way(("best_run", "marlcore top"), "`metrics.csv`, `config.json`, `checkpoints/run.json`")
WAYS = (UNPICKLED, IMPORTED, CONTINUED, COMPARED, WEIGHTS, RECORD)


def open_run(run_dir: str | os.PathLike[str], way: Way = COMPARED, trust: bool | None = None) -> Path:
    """Checks a directory, and returns its absolute path, or its real path if `way.own`; each door calls this first.

    `trust` is None for a door that has no such argument. Raises ValueError: `run_dir` is no path, another user could
    have changed the directory, or another user has put links in place of its folders.
    """
    label = "resume" if way is COMPARED else "run_dir"
    root = absolute(run_dir, label)
    for folder in () if trust else (root / name for name in FOLDERS):
        if folder.is_symlink() and os.lstat(folder).st_uid != os.geteuid():
            raise ValueError(f"{label}: expected folders of its own, got {str(folder)!r}, another user's link")
    if not way.own:
        return root
    root = Path(os.path.realpath(root))
    inside = [Path(folder, name) for folder, *names in os.walk(root / "checkpoints") for name in chain(*names)]
    for path in () if trust else (root, *(root / name for name in CODE), *inside):  # a walk does not follow links
        if os.path.lexists(path) and (reason := _doubt(os.lstat(path))):
            raise ValueError(
                "trust: expected a run that only this user can write, since what lies there is believed or executed, "
                f"got {str(path)!r}, which {reason}"
                + ("" if trust is None else "; trust=True or --trust loads it all the same")
            )
    return root


def _doubt(status: os.stat_result) -> str:
    """Returns the reason to believe that another user could have changed a file; "" if there is none."""
    if status.st_uid not in (os.geteuid(), 0):
        return f"belongs to user {status.st_uid}"
    if stat.S_ISLNK(status.st_mode):
        return "is a link"
    if status.st_mode & 0o022:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}; chmod -R go-w repairs that"
    return ""
