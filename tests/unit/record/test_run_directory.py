"""A run's directory is whole or refused, and what it records reads back exactly."""

import contextlib
import errno
import fcntl
import json
import math
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refused import check_refused

from marlcore.errors import ClosedError
from marlcore.memory import try_lock
from marlcore.meta import several
from marlcore.processes import Metric, opener
from marlcore.record import (
    RunDirectory,
    has_ended,
    lock_directory,
    read_config,
    read_metrics,
    write_atomically,
    write_json,
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDirectory]:
    """A run in tmp_path / "run", which stays."""
    with RunDirectory.create(tmp_path / "run", {"seed": 1}) as made:
        made.keep()
        yield made


def test_a_new_run_holds_its_configuration_and_its_folders(tmp_path):
    with RunDirectory.create(tmp_path / "a" / "b", {"seed": 3, "run_dir": tmp_path}) as run:
        assert run.path == tmp_path / "a" / "b"
    written = json.loads((run.path / "config.json").read_text())
    assert written.pop("sha256") and written == {"seed": 3, "run_dir": str(tmp_path), "file": "config.json"}
    assert read_config(run.path) == {"seed": 3, "run_dir": str(tmp_path)}
    names = sorted(entry.name for entry in run.path.iterdir())
    assert names == [".lock", "checkpoints", "config.json", "logs", "metrics.csv"]
    assert run.log_path("actor-0") == run.path / "logs" / "actor-0.log"
    assert run.checkpoint_path("agent_0") == run.path / "checkpoints" / "agent_0.pt"
    assert run.checkpoint_path("../red/1").parent == run.path / "checkpoints"
    (tmp_path / "empty").mkdir()
    RunDirectory.create(tmp_path / "empty", {}).close()
    assert (tmp_path / "empty" / "config.json").exists()


EMPTY = "run_dir: expected a new or empty directory, got "
REFUSED = {  # where a run is to be made, its configuration, the error, and what it says
    "a run": ("run", {}, ValueError, f"{EMPTY}'RUN/run', which holds a run"),
    "files": ("files", {}, ValueError, f"{EMPTY}'RUN/files', which holds files"),
    "a file": ("files/notes.txt", {}, ValueError, f"{EMPTY}a file, 'RUN/files/notes.txt'"),
    "below a file": ("files/notes.txt/run", {}, ValueError, "got 'RUN/files/notes.txt/run' (Not a directory)"),
    "nowhere": ("/proc/run", {}, ValueError, "run_dir: expected a writable place, got '/proc/run'"),
    "an object": ("new", {"a": object()}, TypeError, "not object"),
    "no number": ("new", {"a": math.nan}, ValueError, "JSON compliant"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.usefixtures("run")
def test_a_refused_run_changes_nothing(tmp_path, case):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    place, config, error, says = REFUSED[case]
    check_refused(lambda: RunDirectory.create(tmp_path / place, config), error, says.replace("RUN", str(tmp_path)))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError("disk full")

    path = tmp_path / "config.json"
    (tmp_path / ".config.json.0123.new").write_text("what a killed writer left")
    write_atomically(path, b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@contextlib.contextmanager
def short_files(nbytes):
    """Limits the files of this process to `nbytes`; use it briefly, since pytest may write its output to a file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("earlier", [b"earlier", None])
def test_a_file_that_finds_no_room_is_named_with_what_was_kept(tmp_path, earlier):
    path = tmp_path / "agent_0.pt"
    if earlier:
        path.write_bytes(earlier)
    kept = "the earlier file is kept" if earlier else "there is no earlier file"
    refused = pytest.raises(OSError, match=f"10,000 bytes were not written, {kept}: '{path}'$")
    with short_files(4096), refused as caught:
        write_atomically(path, bytes(10_000))
    assert caught.value.errno == errno.EFBIG
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([earlier] if earlier else [])


def test_metrics_without_room_are_named(run):
    for step in range(100):
        run.csv.record(Metric(0.0, step, "agent_0", "loss", 0.5))
    run.csv.flush()
    with short_files(100_000):
        with pytest.raises(OSError, match=f"its whole lines are kept: '{run.path}/"):
            for step in range(100, 10_000):
                run.csv.record(Metric(0.0, step, "agent_0", "loss", 0.5))
                run.csv.flush()
        with contextlib.suppress(OSError):  # it tries once more
            run.close()
    run.close()
    steps = [metric.step for metric in read_metrics(run.path / "metrics.csv")]
    assert len(steps) > 100 and steps == list(range(len(steps)))


def test_metrics_read_back_exactly(tmp_path):
    """Numbers of NumPy are read back as Python's floats."""
    metrics = [
        Metric(0.1 + 0.2, 0, "agent_0", "loss", 1 / 3),
        Metric(1e-300, 2**53 + 1, 'a,"b"', "episode_return", -math.inf),
        Metric(5.0, 7, "", "env_steps_per_s", 5e-324),
        Metric(np.float64(1.5), np.int64(4), "a", "loss", np.float32(0.1)),
    ]
    with RunDirectory.create(tmp_path, {}) as run:
        for metric in [*metrics, Metric(2.0, 5, "a", "loss", math.nan)]:
            run.csv.record(metric)
    run.close()  # again
    check_refused(lambda: run.csv.record(metrics[0]), ClosedError, "expected an open file, got a closed one")
    assert (tmp_path / "metrics.csv").read_text().startswith("time_s,step,agent,name,value\n0.30000000000000004,")
    *read, last = read_metrics(tmp_path / "metrics.csv")
    assert read == metrics and type(read[-1].value) is float and math.isnan(last.value)


LINES = {
    "2.0,2,a": r"'2.0,2,a\n' (not enough values",
    "2.0,2,a,loss,1.0,9": "(too many values",
    "soon,2,a,loss,1.0": "(could not convert string to float: 'soon')",
    "2.0,2.5,a,loss,1.0": "(invalid literal for int()",
    "\0" * 300: "...",
    "2.0,2,a,loss," + "1" * 200_000: "field larger than field limit",
}


@pytest.mark.parametrize("line", LINES, ids=lambda line: line[:20])
def test_a_damaged_line_of_metrics_is_named_with_its_file(tmp_path, line):
    path = tmp_path / "metrics.csv"
    path.write_text(f"time_s,step,agent,name,value\n1.0,1,a,loss,2.0\n{line}\n3.0,3,a,loss,2.0\n")
    says = re.escape(f"{str(path)!r}: expected time_s,step,agent,name,value in line 3, got ")
    with pytest.raises(ValueError, match=rf"^{says}.*{re.escape(LINES[line])}.*$") as caught:
        read_metrics(path)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def sealed(members: Any) -> Callable[[Path], object]:
    return lambda path: write_json(path, members)


HEADER = b"time_s,step,agent,name,value\n"
CONFIG, METRICS, PROGRESS = "config.json", "metrics.csv", "checkpoints/run.json"
DAMAGE = {  # the file, its content or what writes it, and what is said
    "a line of metrics": (METRICS, HEADER + b"1.0,1,a,loss\n1.0,2,a", "expected time_s,step,agent,name,value in line"),
    "half a configuration": (CONFIG, b'{"seed": ', "config.json': expected a JSON object, got invalid JSON (Expecting"),
    "brackets": (CONFIG, b"[" * 100_000, "config.json': expected a JSON object, got invalid JSON ("),
    "another configuration": (CONFIG, b"[1, 2]", "config.json': expected a JSON object, got [1, 2]"),
    "bytes": (PROGRESS, b"\xff\0", "run.json': expected the file as the run wrote it, got a changed or damaged one"),
    "a negative count": (PROGRESS, sealed({"steps": {"actor-0": -3}}), "expected time_s and steps, a number for each"),
    "a count of another kind": (PROGRESS, sealed({"steps": {"actor-0": True}}), "run.json': expected time_s and steps"),
    "steps of another kind": (PROGRESS, sealed({"steps": 3}), "run.json': expected time_s and steps"),
    "a time that is none": (PROGRESS, sealed({"time_s": "NaN", "steps": {}}), "run.json': expected time_s and steps"),
    "no metrics": (METRICS, Path.unlink, "metrics.csv'"),
    "other metrics": (METRICS, b"x,y\n1,2\n", "expected the header time_s,step,agent,name,value, got 'x,y'"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGE)
def test_a_run_with_a_damaged_file_is_refused_and_left_as_it_is(run, tmp_path, case):
    run.close()
    name, damage, words = DAMAGE[case]
    path = run.path / name
    path.write_bytes(damage) if isinstance(damage, bytes) else damage(path)
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    check_refused(lambda: RunDirectory.resume(run.path), ValueError, words)
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_a_line_cut_short_by_a_kill_is_dropped(run):
    """A resumed run writes behind the last whole line, and makes a deleted folder of logs again."""
    metrics, path = [Metric(float(step), step, "a", "loss", 2.0) for step in (1, 3)], run.path / "metrics.csv"
    run.csv.record(metrics[0])
    run.close()
    with path.open("a") as file:
        file.write("2.0,2,a,loss,12")
    assert read_metrics(path) == metrics[:1]
    run.log_path("actor-0").parent.rmdir()
    with RunDirectory.resume(run.path) as resumed:
        assert resumed.log_path("actor-0").parent.is_dir()
        resumed.csv.record(metrics[1])
    assert read_metrics(path) == metrics


@pytest.mark.parametrize(("saved", "step", "kept"), [(0, 0, 0), (0, 20, 2), (1, 0, 1), (3, 20, 3)])
def test_metrics_of_steps_that_are_taken_again_are_cut_off(run, saved, step, kept):
    """If a run is killed before it saved its progress, its metrics begin anew, as the run does."""
    metrics = [Metric(0.5, step, "a\nb", "loss", 1.0) for step in (10, 20, 30, 40)]
    for count, metric in enumerate(metrics, 1):
        run.csv.record(metric)
        if count == saved:
            run.save_progress({})
    run.close()
    with RunDirectory.resume(run.path) as resumed:
        resumed.resume_at(resumed.csv.size_at(step), {})
        resumed.csv.record(metrics[-1])
        resumed.save_progress({})
    assert read_metrics(run.path / "metrics.csv") == [*metrics[:kept], metrics[-1]]


@pytest.mark.parametrize("version", ["0.2", "now"])
def test_a_live_run_is_not_resumed(run, version):
    """A run of marlcore 0.2 locks metrics.csv, and has no `.lock`."""
    says, path = f"resume: expected a run that has ended, got {str(run.path)!r}, which is still running", run.path
    if version == "0.2":
        run.close()
        (path / ".lock").unlink()
        run = open(path / "metrics.csv", "r+b")  # noqa: SIM115
        assert try_lock(run.fileno(), 0, exclusive=True)
    check_refused(lambda: RunDirectory.resume(path), ValueError, says)
    run.close()
    RunDirectory.resume(path).close()


def test_a_user_who_may_only_read_a_run_cannot_block_it(run):
    """Another user may share a lock of metrics.csv, and lock the directory; `.lock` is closed to others."""
    run.close()
    (run.path / ".lock").chmod(0o644)  # as some copies have it
    with open(run.path / "metrics.csv", "rb") as metrics:
        assert try_lock(metrics.fileno(), 0, exclusive=False)
        folder = os.open(run.path, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)
        with RunDirectory.resume(run.path), pytest.raises(ValueError, match="a directory in which no other psro works"):
            assert (run.path / ".lock").stat().st_mode & 0o777 == 0o600 and not has_ended(run.path)
            with several.working_in(run.path, "psro"):
                pass
        with several.working_in(run.path, "psro"):
            check_refused(lambda: RunDirectory.resume(run.path), ValueError, "which is still running")
        os.close(folder)
    assert has_ended(run.path)


def test_a_directory_that_another_program_fills_meanwhile_stays(tmp_path, monkeypatch):
    monkeypatch.setattr("marlcore.meta.several.holds_files", lambda folder: (folder / "new").touch())
    with several.working_in(tmp_path / "psro", "psro"):
        pass
    assert [path.name for path in (tmp_path / "psro").iterdir()] == ["new"]
    monkeypatch.undo()
    with several.working_in(tmp_path / "empty", "psro"):
        pass
    assert not (tmp_path / "empty").exists()


def test_a_lock_whose_file_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Its first holder removes the file before it lets go; a third process would lock a new one."""

    def removed(fd, offset, exclusive):
        monkeypatch.undo()
        (tmp_path / ".lock").unlink()
        return try_lock(fd, offset, exclusive)

    monkeypatch.setattr("marlcore.record.run_directory.try_lock", removed)
    with lock_directory(tmp_path) as lock:
        assert os.path.samestat(os.fstat(lock.fd), os.stat(tmp_path / ".lock")) and lock_directory(tmp_path) is None


def test_a_pipe_in_place_of_a_log_is_refused(tmp_path):
    os.mkfifo(tmp_path / "actor-0.log")
    with pytest.raises(OSError, match=r"actor-0\.log"):
        opener(str(tmp_path / "actor-0.log"), os.O_WRONLY | os.O_APPEND)


def test_a_worker_logs_time_process_level_message_and_warnings(tmp_path):
    program = """
import logging, multiprocessing, sys, warnings
from marlcore.processes import setup_logging
multiprocessing.current_process().name = "actor-0"
setup_logging(sys.argv[1])
logging.info("hello")
logging.debug("too quiet")
warnings.warn("careful")
"""
    log = tmp_path / "actor-0.log"
    for place in (log, "/dev/full"):  # the parent names a full disk, in one line
        done = subprocess.run([sys.executable, "-c", program, place], check=True, capture_output=True)
        assert done.stderr == b""
    first, second = (line for line in log.read_text().splitlines() if line[:4].isdigit())
    assert first.endswith(" actor-0 INFO hello")
    assert " actor-0 WARNING " in second and "careful" in second and "too quiet" not in log.read_text()


def test_no_planted_link_is_written_through(tmp_path):
    """With a umask that lets everybody write, and another user's links where earlier versions wrote."""
    other = tmp_path / "other"
    other.write_text("theirs")
    before = os.umask(0)
    try:
        with RunDirectory.create(tmp_path / "a" / "run", {}) as run:
            (run.path / "checkpoints" / ".run.json.new").symlink_to(other)
            (run.path / "checkpoints" / "run.json").symlink_to(other)
            run.save_progress({})
            run.keep()
    finally:
        os.umask(before)
    assert other.read_text() == "theirs" and not (run.path / "checkpoints" / "run.json").is_symlink()
    own = [path for path in (tmp_path / "a").rglob("*") if not path.is_symlink()]
    modes = dict.fromkeys(["config.json", "metrics.csv", "run.json"], "644") | {".lock": "600"}
    assert {path.name: f"{path.stat().st_mode & 0o7777:o}" for path in own if path.is_file()} == modes
    assert {path.stat().st_mode & 0o777 for path in own if path.is_dir()} == {0o755}
