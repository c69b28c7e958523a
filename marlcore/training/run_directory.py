"""A run's directory: its configuration, metrics, logs and checkpoints; one process at a time may write them."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, count, takewhile
from pathlib import Path
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote

from ..checks import came
from ..errors import ClosedError
from ..memory import try_lock
from ..processes import Metric

__all__ = [
    "RunDirectory",
    "agent_order",
    "read_config",
    "read_metrics",
    "read_progress",
    "setup_logging",
    "write_atomically",
]

RUNS = "runs"  # parent of run directories without a given path
_HEADER = ["time_s", "step", "agent", "name", "value"]


class RunDirectory:
    """Writes a run's files. Use `create` or `resume`; only one process at a time may write.

    run_dir/
        config.json             the configuration; its presence marks a run
        metrics.csv             every metric, one a line
        tensorboard/            the same as TensorBoard events, tag "agent/name"
        logs/<worker>.log
        checkpoints/<agent>.pt, and <agent>.replay where replays are saved
        checkpoints/run.json    the run's progress

    Attributes:
        path: the directory, absolute.
    """

    def __init__(self, path: Path, mode: Literal["x", "r+"]) -> None:
        """Open the metrics of a laid-out directory, new or existing; callers use `create` or `resume`."""
        self.path = path
        self._made = _Made()
        self._csv = open(path / "metrics.csv", mode, encoding="utf-8", newline="")  # noqa: SIM115 (`close`)
        try:
            if not try_lock(self._csv.fileno(), 0, exclusive=True):
                raise ValueError(f"resume: expected a run that has ended, got {str(path)!r}, which is still running")
            self._rows = csv.writer(self._csv, lineterminator="\n")
            if mode == "x":
                self._rows.writerow(_HEADER)
                self._csv.flush()
            elapsed_s = float(self.progress.get("time_s", 0.0))  # before anything is changed
            if mode == "r+":
                _cut_off_half_a_line(path / "metrics.csv")
                self._csv.seek(0, os.SEEK_END)
            self._events = _EventFile(path / "tensorboard", elapsed_s)
        except BaseException:
            self._csv.close()
            raise

    @classmethod
    def create(cls, path: str | Path | None, config: Mapping[str, Any]) -> RunDirectory:
        """Make the directory and its parents, and write the configuration.

        As a context manager it removes all of these if an error ends the block before `keep`.

        Args:
            path: a new or empty directory; None makes one in `runs`, named by date and time.
            config: anything that JSON holds; paths become strings.

        Raises:
            ValueError: the directory is not empty or not writable, or the configuration holds NaN.
            TypeError: the configuration holds a value that JSON cannot.
        """
        text, made = _as_json(config), _Made()
        try:
            with ExitStack() as unless_whole:
                unless_whole.callback(made.take_back)
                root = _make_directory(path, made)
                _lay_out(root, made)
                run = cls(root, "x")
                unless_whole.callback(run.close)
                write_atomically(root / "config.json", text)  # last: this file marks a run
                run._made = made
                unless_whole.pop_all()
            return run
        except OSError as error:
            raise ValueError(
                f"run_dir: expected a place that can be written, got {str(path or RUNS)!r} ({error.strerror})"
            ) from error

    @classmethod
    def resume(cls, path: str | Path) -> RunDirectory:
        """Open a run's directory to continue it; an incomplete last line of a killed run is cut off.

        Raises:
            ValueError: there is no run, it has not ended, or one of its files is damaged; nothing was changed.
        """
        root = Path(path).absolute()
        read_config(root)
        try:
            return cls(root, "r+")
        except OSError as error:
            raise _no_run(path, error) from error

    def keep(self) -> None:
        """From now on, the directory stays however the run ends."""
        self._made = _Made()

    def replace_config(self, config: Mapping[str, Any]) -> None:
        """Writes the configuration of the resumed run."""
        write_atomically(self.path / "config.json", _as_json(config))

    def save_progress(self, progress: Mapping[str, Any]) -> None:
        """Replaces the progress that `progress` returns."""
        write_atomically(self.path / "checkpoints" / "run.json", json.dumps(progress).encode())

    @property
    def progress(self) -> dict[str, Any]:
        """See `read_progress`."""
        return read_progress(self.path)

    def record(self, metric: Metric) -> None:
        """Append a metric to metrics.csv and to the TensorBoard events; buffered until `flush`.

        Raises:
            ClosedError: the run directory was closed.
        """
        if self._csv.closed:
            raise ClosedError(f"run directory {str(self.path)!r}: expected it open, it was closed")
        # repr is the shortest text that reads back as the same float; float() drops NumPy's own repr.
        time_s, value = repr(float(metric.time_s)), repr(float(metric.value))
        with self._naming_metrics():
            self._rows.writerow([time_s, int(metric.step), metric.agent, metric.name, value])
        with self._naming_events():
            self._events.record(metric)

    def flush(self) -> None:
        """Hand everything recorded so far to the operating system. Raises OSError: a write failed."""
        with self._naming_metrics():
            self._csv.flush()
        with self._naming_events():
            self._events.flush()

    def close(self) -> None:
        """Flush and close the files; closing twice is fine. Raises OSError: see `flush`; the files are closed."""
        try:
            with self._naming_metrics():
                self._csv.close()
        finally:
            with self._naming_events():
                self._events.close()

    def _naming_metrics(self) -> AbstractContextManager[None]:
        return _naming(self.path / "metrics.csv", "its whole lines are kept")

    def _naming_events(self) -> AbstractContextManager[None]:
        return _naming(self.path / "tensorboard", "everything flushed before is kept")

    def log_path(self, worker: str) -> Path:
        """A worker's log file."""
        return self.path / "logs" / f"{_file_name(worker)}.log"

    def checkpoint_path(self, agent: str) -> Path:
        """An agent's checkpoint file."""
        return self.path / "checkpoints" / f"{_file_name(agent)}.pt"

    def replay_path(self, agent: str) -> Path:
        """The file of an agent's saved replay."""
        return self.path / "checkpoints" / f"{_file_name(agent)}.replay"

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        if error is not None:
            self._made.take_back()


def read_config(run_dir: str | Path) -> dict[str, Any]:
    """A run's config.json. Raises ValueError: there is no run."""
    try:
        return _read_object(Path(run_dir) / "config.json")
    except (OSError, ValueError) as error:
        raise _no_run(run_dir, error) from None


def read_progress(run_dir: str | Path) -> dict[str, Any]:
    """A run's last saved progress; empty if nothing was saved. Raises ValueError: the file is damaged."""
    path = Path(run_dir) / "checkpoints" / "run.json"
    saved = _read_object(path) if path.exists() else {}
    time_s, steps = saved.get("time_s", 0.0), saved.get("steps", {})
    if not (_is_number(time_s, float, int) and isinstance(steps, dict)
            and all(_is_number(count, int) for count in steps.values())):  # fmt: skip
        raise ValueError(f"{str(path)!r}: expected time_s and steps, a number for each worker, got {came(saved)}")
    return saved


def read_metrics(path: str | Path) -> list[Metric]:
    """Read a metrics.csv, in the order written.

    A last line without a newline, left by a killed run, is dropped: its number may be cut short.

    Raises:
        ValueError: the file is not a metrics.csv, or one of its lines is not a metric.
    """
    text = Path(path).read_bytes().decode("utf-8", errors="replace")
    lines = io.StringIO(text[: text.rfind("\n") + 1], newline="").readlines()
    header, expected = lines[0].rstrip("\r\n") if lines else "", ",".join(_HEADER)
    if header != expected:
        raise ValueError(f"{str(path)!r}: expected the header {expected}, got {came(header)}")
    rows = csv.reader(lines[1:])
    try:
        return [
            Metric(float(time_s), int(step), agent, name, float(value)) for time_s, step, agent, name, value in rows
        ]
    except (ValueError, csv.Error) as error:
        line = 1 + rows.line_num
        raise ValueError(
            f"{str(path)!r}: expected {expected} in line {line}, got {came(lines[line - 1])} ({error})"
        ) from None


def agent_order(agent: str) -> tuple[int, str]:
    """A sort key that puts agent_2 before agent_10."""
    return len(agent), agent


def setup_logging(path: str | Path) -> None:
    """Send this process's log records of level INFO and above, and its warnings, to a file."""
    logging.basicConfig(
        filename=path,
        encoding="utf-8",
        level=logging.INFO,
        format="%(asctime)s %(processName)s %(levelname)s %(message)s",
        force=True,  # the environment's imports may have installed other handlers
    )
    logging.captureWarnings(True)


def write_atomically(path: Path, data: bytes) -> None:
    """Make `path` hold `data`, atomically: even after a crash, a reader sees all of it or the old content.

    Raises OSError: the disk is full or failed; the old content is intact, as the error says.
    """
    aside = path.with_name(f".{path.name}.new")  # each file has one writer; it overwrites what a killed one left
    kept = "the earlier one is kept" if path.exists() else "there is no earlier one"
    try:
        with _naming(path, f"{len(data):,} bytes were not written, {kept}"):
            with open(aside, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path, kept: str) -> Iterator[None]:
    """Adds to an error of a write, which names no file, the file's name and what was kept."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror or error}; {kept}", str(path)) from error


def _read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises ValueError: it holds something else; OSError: it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{str(path)!r}: expected a JSON object, got invalid JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{str(path)!r}: expected a JSON object, got {came(found)}")
    return found


def _is_number(value: object, *kinds: type) -> bool:
    """Whether a JSON value is a number of a valid kind that fits a word of the control block."""
    return type(value) in kinds and 0 <= value < 2**63  # type: ignore[operator]


def _no_run(path: str | Path, error: Exception) -> ValueError:
    return ValueError(f"resume: expected the directory of a run, got {str(path)!r} ({error})")


def _as_json(config: Mapping[str, Any]) -> bytes:
    return (json.dumps(config, indent=2, allow_nan=False, default=os.fspath) + "\n").encode()


def _cut_off_half_a_line(path: Path) -> None:
    """Removes an incomplete line after the last whole metric. Raises ValueError: the file is not a metrics.csv."""
    read_metrics(path)
    whole, newline, _ = path.read_bytes().rpartition(b"\n")
    os.truncate(path, len(whole) + len(newline))


@dataclass
class _Made:
    """The files and directories that a run made, to remove them if it fails."""

    directories: list[Path] = field(default_factory=list)  # the run's directory and its parents, the outermost first
    contents: list[Path] = field(default_factory=list)  # in the run's directory

    def make(self, directory: Path) -> None:
        """Makes a directory with its parents. Raises FileExistsError: it exists."""
        missing = takewhile(lambda path: not path.exists(), directory.parents)
        for parent in reversed([*missing]):
            with suppress(FileExistsError):  # another run was quicker
                parent.mkdir()
                self.directories.append(parent)
        directory.mkdir(parents=True)
        self.directories.append(directory)

    def take_back(self) -> None:
        """Removes them; files that other processes put there stay, and so do the directories that hold them."""
        for path in self.contents:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for directory in reversed(self.directories):
            with suppress(OSError):
                directory.rmdir()


def _make_directory(path: str | Path | None, made: _Made) -> Path:
    """A run's directory, made if needed; without a path a unique one, even for runs that start in the same second."""
    if path is not None:
        root = Path(path).absolute()
        if root.exists() and not root.is_dir():
            raise ValueError(f"run_dir: expected a new or empty directory, got a file, {str(root)!r}")
        with suppress(FileExistsError):
            made.make(root)
        return root
    name = time.strftime("%Y%m%d-%H%M%S")
    for suffix in chain([""], (f"-{number}" for number in count(1))):
        root = Path(RUNS, name + suffix).absolute()
        try:
            made.make(root)
        except FileExistsError:
            continue
        break
    return root


def _lay_out(root: Path, made: _Made) -> None:
    if (root / "config.json").exists():
        raise ValueError(f"run_dir: expected a new or empty directory, got {str(root)!r}, which holds a run")
    if any(root.iterdir()):
        raise ValueError(f"run_dir: expected a new or empty directory, got {str(root)!r}, which holds files")
    folders = [root / name for name in ("checkpoints", "logs", "tensorboard")]
    folders[0].mkdir()  # if two runs race for the directory, one fails here
    made.contents += [*folders, root / "metrics.csv", root / "config.json"]
    for folder in folders[1:]:
        folder.mkdir()


def _file_name(name: str) -> str:
    """The name itself if it is plain, such as "agent_0"; other characters, such as slashes, are percent-encoded."""
    return quote(name, safe="")


class _EventFile:
    """TensorBoard's event file, written from this thread.

    tensorboard's EventFileWriter would start a thread for work that takes microseconds here, and torch's
    SummaryWriter would import torch.
    """

    def __init__(self, directory: Path, elapsed_s: float) -> None:
        # Imported here, since workers import this module only for Metric and setup_logging.
        from tensorboard.compat.proto.event_pb2 import Event  # type: ignore[import-untyped]
        from tensorboard.compat.proto.summary_pb2 import Summary  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]

        self._event, self._summary = Event, Summary
        self._began = time.time() - elapsed_s  # the start of the whole run, if it is resumed
        before = len(list(directory.iterdir()))  # event files before a resume
        file = open(directory / f"events.out.tfevents.{int(time.time())}.{before}", "xb")  # noqa: SIM115 (`close`)
        self._records = RecordWriter(file)
        header = Event(wall_time=self._began, file_version="brain.Event:2")
        self._records.write(header.SerializeToString())

    def record(self, metric: Metric) -> None:
        tag = f"{metric.agent}/{metric.name}" if metric.agent else metric.name
        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=float(metric.value))])
        event = self._event(wall_time=self._began + metric.time_s, step=int(metric.step), summary=summary)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        self._records.flush()

    def close(self) -> None:
        self._records.close()
