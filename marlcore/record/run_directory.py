"""A run's directory: its configuration, metrics, logs and checkpoints; one process at a time may write them."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ..checks import absolute, as_path, brief, check_kinds
from ..closing import ClosedAfterError
from ..config import BY_POLICY, SECTIONS, Config
from ..declared import flattened
from ..errors import suppress_failed_calls
from ..memory import File, is_locked, same_file, try_lock
from ..regular_files import open_regular
from .files import believed, read_json, write_json
from .remote import is_address
from .sinks.csv import PROGRESS, CsvSink
from .trust import FOLDERS, RECORD, open_run

KINDS: dict[str, Any] = dict.fromkeys((*SECTIONS, "init_from", "hyperparameters"), dict)  # in config.json
KINDS |= {"self_play.roles": dict | None, "self_play.anchors": dict | list | None, "total_steps": int}
LOCK = ".lock"  # its mode keeps other users from opening and locking it
RUNS = "runs"  # parent of run directories without a given path


@dataclass(eq=False)
class RunDirectory:
    """Writes a run's files. Use `create` or `resume`; only one process at a time may write.

    run_dir/
        config.json             the configuration; its presence marks a run
        .lock                   its lock keeps other processes out
        metrics.csv             every metric, one a line
        tensorboard/, wandb/    the same metrics, if `Config.metrics` names these sinks
        logs/<worker>.log
        checkpoints/<policy>.pt, and <policy>.replay if replays are saved
        checkpoints/<policy>.best.pt and <policy>.<step>.pt, kept by evaluations
        checkpoints/run.json    the run's progress
    """

    path: Path
    csv: CsvSink
    _lock: File
    _undo: ExitStack = field(default_factory=ExitStack)

    @classmethod
    def create(cls, path: str | Path | None, config: Mapping[str, Any], runs: str | Path = RUNS) -> RunDirectory:
        """Makes the directory `path`, or one in `runs` named by date and time; an error before `keep` removes it again.

        Raises ValueError if the directory is not empty or not writable; ValueError or TypeError if JSON cannot hold
        the configuration.
        """
        try:
            with ExitStack() as undo:
                root = _make_directory(path, runs, undo)
                lock = undo.enter_context(_locked(root))
                csv = CsvSink(root / "metrics.csv", "x")
                undo.callback(csv.close)
                write_json(root / "config.json", config, indent=2)  # last: this file marks a run
                return cls(root, csv, lock, undo.pop_all())
        except OSError as error:
            if error.errno is None:  # raised by a signal handler
                raise
            raise ValueError(
                f"run_dir: expected a writable place, got {str(path or runs)!r} ({error.strerror})"
            ) from error

    @classmethod
    def resume(cls, path: str | Path) -> RunDirectory:
        """Opens the directory of an ended run. Raises ValueError if there is no such run or a file is damaged."""
        root = absolute(path)
        read_config(root)
        read_progress(root)
        try:
            (root / "logs").mkdir(mode=0o755, exist_ok=True)  # a user may have deleted the logs
            lock = _locked(root)
            with ClosedAfterError(lock):
                return cls(root, CsvSink(root / "metrics.csv", "r+"), lock)
        except OSError as error:
            if error.errno is None:  # raised by a signal handler
                raise
            expected = "resume: expected the directory of a run"
            raise ValueError(f"{expected}, got {str(path)!r} ({error})") from error

    def keep(self) -> None:
        """Keeps the directory from now on, even if the run fails."""
        self._undo.pop_all()

    def replace_config(self, config: Mapping[str, Any]) -> None:
        write_json(self.path / "config.json", config, indent=2)

    def save_progress(self, progress: Mapping[str, Any]) -> None:
        """Saves the progress for `read_progress`, with a checksum of metrics.csv so far, which its readers verify."""
        write_json(self.path / PROGRESS, {**progress, "metrics": self.csv.sync()})

    def resume_at(self, size: int, progress: Mapping[str, Any]) -> None:
        """Saves the progress of a resumed run, and cuts off metrics.csv at `size` bytes.

        The progress comes first: it holds the checksum of the bytes that stay, which readers verify.
        """
        self.csv.resume_at(size)
        self.save_progress(progress)
        self.csv.cut()

    def close(self) -> None:
        """Flushes and closes metrics.csv; closing twice is fine. After closing, raises OSError if a write failed."""
        with self._lock:
            self.csv.close()

    def log_path(self, worker: str) -> Path:
        return self.path / "logs" / f"{_file_name(worker)}.log"

    def checkpoint_path(self, policy: str) -> Path:
        return checkpoint_path(self.path, policy)

    def replay_path(self, policy: str) -> Path:
        return self.path / "checkpoints" / f"{_file_name(policy)}.replay"

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
        if error is not None:
            self._undo.close()


def lock_directory(folder: Path) -> File | None:
    """Locks a directory until the returned file is closed or this process ends; returns None if it is locked."""
    path = folder / LOCK
    while True:
        file = File(path)
        file.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        os.fchmod(file.fd, 0o600)  # in a copy of the directory, the mode may be another
        locked = try_lock(file.fd, 0, exclusive=True)
        if locked and same_file(file.fd, path):
            return file
        file.close()
        if not locked:
            return None


def holds_files(folder: Path) -> bool:
    """Whether the directory holds anything except its lock."""
    return any(path.name != LOCK for path in folder.iterdir())


def check_unused(root: Path) -> None:
    """Raises ValueError if a new run's directory is a file, or holds files."""
    if root.exists() and not root.is_dir():
        raise ValueError(f"run_dir: expected a new or empty directory, got a file, {str(root)!r}")
    if root.exists() and holds_files(root):
        content = "a run" if (root / "config.json").exists() else "files"
        raise ValueError(f"run_dir: expected a new or empty directory, got {str(root)!r}, which holds {content}")


def checkpoint_path(run_dir: Path, policy: str, which: str = "last") -> Path:
    """Returns the path of a policy's checkpoint; `which` is "last", "best", or the step of a kept checkpoint."""
    return run_dir / "checkpoints" / f"{_file_name(policy)}{'' if which == 'last' else '.' + which}.pt"


def durable_note(saved: Path) -> Path:
    """Returns the file that holds the path of a policy's durable replay, given the path of its saved replay."""
    return saved.with_suffix(".durable")


def keeps_replays(run_dir: str | Path) -> bool:
    """Whether a run's replays or queues were kept (`replay.save`, `replay.durable`)."""
    checkpoints = Path(run_dir) / "checkpoints"
    return any((*checkpoints.glob("*.replay"), *checkpoints.glob("*.durable")))


def located(config: Config, resume: str | Path | None) -> tuple[Config, Path | None, str | None]:
    """Returns the settings with absolute paths, the local directory to resume (or None) and the address (or None)."""
    if resume is not None:
        check_same_run(config.run_dir, resume)
    place = config.run_dir if resume is None else resume
    remote = place if is_address(place) else None
    if is_address(config.run_dir):
        config = replace(config, run_dir=None)
    here = None if resume is None or remote else open_run(resume)
    if here is not None:
        config = replace(config, run_dir=str(here))
    return config.with_absolute_paths(), here, remote


def check_same_run(run_dir: str | None, resume: str | Path, kind: str = "run") -> None:
    """Raises ValueError unless `run_dir` is None or names the same directory as `resume`."""
    if run_dir is None or run_dir == str(as_path("resume", resume)):
        return
    if is_address(run_dir) or is_address(resume) or absolute(run_dir).resolve() != absolute(resume).resolve():
        expected = f"run_dir: expected None or the directory of the resumed {kind}, {str(resume)!r}"
        raise ValueError(f"{expected}, got {run_dir!r}")


def dated_paths(runs: str | Path, kind: str = "") -> Iterator[Path]:
    """Yields absolute paths for a new directory in `runs`, named by date and time; take the first free one."""
    name = time.strftime("%Y%m%d-%H%M%S") + kind
    return (absolute(Path(runs, name + suffix)) for suffix in chain([""], map("-{}".format, count(1))))


def read_config(run_dir: str | Path) -> dict[str, Any]:
    """Reads a run's config.json; warns if it was edited. Raises ValueError if there is no run."""
    with believed("resume: expected the directory of a run", Path(run_dir), "config.json"):
        plain = read_json(Path(run_dir) / "config.json", editable=True)
        settings = dict(flattened(plain, Config))
        check_kinds(settings, KINDS)
        sections = {f"{by}.{policy}": section for by in BY_POLICY for policy, section in settings.get(by, {}).items()}
        check_kinds(sections, dict.fromkeys(sections, dict))
    return plain


def read_progress(run_dir: str | Path) -> dict[str, Any]:
    """Reads a run's last saved progress; {} if none was saved. Raises ValueError if the file is damaged."""
    path = Path(run_dir) / PROGRESS
    saved = read_json(path) if os.path.lexists(path) else {}
    steps = saved.get("steps", {})
    counts = steps.values() if isinstance(steps, dict) else [None]
    integers = *counts, saved.get("skips", 0), saved.get("evaluated", 0)
    kinds = [(saved.get("time_s", 0.0), (int, float)), *((number, (int,)) for number in integers)]
    if not all(type(number) in kind and 0 <= number < 2**63 for number, kind in kinds):  # must fit into shared counters
        raise ValueError(f"{str(path)!r}: expected time_s and steps, a number for each worker, got {brief(saved)}")
    return saved


def steps_taken(run_dir: str | Path) -> int:
    """Returns a run's steps when its progress was last saved. Raises ValueError if the file is damaged."""
    return sum(read_progress(run_dir).get("steps", {}).values())


def unkept_steps(run_dir: str | Path) -> int:
    """Returns the steps that a run has taken if it kept no rows of them, otherwise 0."""
    return 0 if keeps_replays(run_dir) else steps_taken(run_dir)


def has_all_steps(run_dir: str | Path) -> bool:
    """Whether a run has taken all its steps. Raises ValueError if there is no run."""
    return bool(steps_taken(run_dir) >= read_config(run_dir)["total_steps"])


def has_ended(path: str | Path) -> bool:
    """Whether the directory holds a run that no process works on; False while a run is being created there."""
    with suppress_failed_calls():  # another user's directory, whose lock cannot be read
        root = open_run(path, RECORD)
        if (root / "config.json").exists():
            with suppress_failed_calls(errno.ENOENT), open_regular(root / LOCK) as lock:
                return not is_locked(lock.fileno(), 0)
            return True
    return False


def agent_order(agent: str) -> tuple[int, str]:
    """Returns a sort key that puts agent_2 before agent_10."""
    return len(agent), agent


def _locked(root: Path) -> File:
    lock = lock_directory(root)
    if lock is None:
        raise ValueError(f"resume: expected a run that has ended, got {str(root)!r}, which is still running")
    return lock


def _make(directory: Path, undo: ExitStack) -> bool:
    """Makes a directory and its parents, which `undo` removes; returns False if the directory exists already."""
    missing = takewhile(lambda path: not path.exists(), directory.parents)
    for path in (*reversed([*missing]), directory):
        new = False
        with suppress_failed_calls(errno.EEXIST):  # another run made it first
            path.mkdir(mode=0o755)
            undo.callback(_remove_empty, path)
            new = True
    return new


def _remove_empty(directory: Path) -> None:
    with suppress_failed_calls():  # it is not empty: another process has put files there
        directory.rmdir()


def _make_directory(path: str | Path | None, runs: str | Path, undo: ExitStack) -> Path:
    """Makes a run's directory and its folders; without a path, names the directory by date and time."""
    if path is None:
        root = next(root for root in dated_paths(runs) if _make(root, undo))
    else:
        check_unused(root := absolute(path))
        _make(root, undo)
    (root / "checkpoints").mkdir(mode=0o755)  # if two runs race for the directory, one fails here
    undo.callback(_remove_contents, root)
    (root / "logs").mkdir(mode=0o755)
    return root


def _remove_contents(root: Path) -> None:
    for name in FOLDERS:
        shutil.rmtree(root / name, ignore_errors=True)
    for name in ("metrics.csv", "config.json", LOCK):
        (root / name).unlink(missing_ok=True)


def _file_name(name: str) -> str:
    """Percent-encodes a name, dots included, so that policy "a.best" and the best of policy "a" differ."""
    return quote(name, safe="").replace(".", "%2E")
