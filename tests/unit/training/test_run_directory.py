"""A run's directory is whole or refused, and what it records reads back exactly."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from marlcore.errors import ClosedError
from marlcore.processes.telemetry import Metric
from marlcore.training import read_metrics
from marlcore.training.record.files import write_atomically, write_json
from marlcore.training.record.run_directory import RunDirectory, read_config


def test_a_new_run_holds_its_configuration_and_its_folders(tmp_path):
    with RunDirectory.create(tmp_path / "a" / "b", {"seed": 3, "run_dir": tmp_path}) as run:
        assert run.path == tmp_path / "a" / "b"
    written = json.loads((run.path / "config.json").read_text())
    assert written.pop("sha256") and written == {"seed": 3, "run_dir": str(tmp_path), "file": "config.json"}
    assert read_config(run.path) == {"seed": 3, "run_dir": str(tmp_path)}
    names = sorted(entry.name for entry in run.path.iterdir())
    assert names == ["checkpoints", "config.json", "logs", "metrics.csv"]


def test_an_empty_directory_is_accepted(tmp_path):
    RunDirectory.create(tmp_path, {}).close()
    assert (tmp_path / "config.json").exists()


def make_run(path: Path) -> None:
    RunDirectory.create(path, {"seed": 1}).close()


def make_full(path: Path) -> None:
    path.mkdir()
    (path / "notes.txt").write_text("mine")


def make_file(path: Path) -> None:
    path.write_text("mine")


@pytest.mark.parametrize(
    ("make", "below", "words"),
    [
        (make_run, ".", "which holds a run"),
        (make_full, ".", "which holds files"),
        (make_file, ".", "got a file"),
        (make_file, "run", "Not a directory"),
    ],
)
def test_a_place_that_is_taken_is_refused(tmp_path, make, below, words):
    """A place that is taken is refused in one line and left as it was."""
    place = tmp_path / "place"
    make(place)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ValueError, match=words) as caught:
        RunDirectory.create(place / below, {"seed": 2})
    message = str(caught.value)
    assert message.startswith("run_dir: expected ")
    assert str(place) in message
    assert "\n" not in message
    assert sorted(tmp_path.rglob("*")) == before


def test_a_place_that_cannot_be_written_is_refused():
    with pytest.raises(ValueError, match=r"run_dir: expected a place that can be written, got '/proc/run'"):
        RunDirectory.create("/proc/run", {})


@pytest.mark.parametrize(("config", "error"), [({"a": object()}, TypeError), ({"a": math.nan}, ValueError)])
def test_a_configuration_that_is_no_json_is_refused(tmp_path, config, error):
    """A configuration that is no json is refused before anything is made."""
    with pytest.raises(error):
        RunDirectory.create(tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_alone(tmp_path, monkeypatch, call):
    """A write that fails midway leaves the old file and no other."""

    def fail(*_):
        raise OSError("disk full")

    path = tmp_path / "config.json"
    write_atomically(path, b"old")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@contextlib.contextmanager
def short_files(nbytes):
    """No file of this process grows beyond that: not for long, since the output of pytest may be a file."""
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
    kept = "the earlier one is kept" if earlier else "there is no earlier one"
    told = pytest.raises(OSError, match=f"10,000 bytes were not written, {kept}: '{path}'$")
    with short_files(4096), told as caught:
        write_atomically(path, bytes(10_000))
    assert caught.value.errno == errno.EFBIG
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([earlier] if earlier else [])


def test_metrics_without_room_are_named(tmp_path):
    """Metrics that find no room are named and whole lines kept."""
    run = RunDirectory.create(tmp_path / "run", {})
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


@pytest.mark.long
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_killed_process_leaves_config_json_whole_or_absent(tmp_path, call):
    """The process dies just before, then just after, the system call that could tear the file."""
    program = """
import os, signal, sys
from marlcore.training.record.run_directory import RunDirectory
when, call = sys.argv[2:]
original = getattr(os, call)
def dying(*args):
    if when == "after":
        original(*args)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(os, call, dying)
RunDirectory.create(sys.argv[1], {"text": "x" * 100_000})
"""
    for when in ("before", "after"):
        run = tmp_path / when
        died = subprocess.run([sys.executable, "-c", program, str(run), when, call], check=False)
        assert died.returncode == -9
        whole = (call, when) == ("replace", "after")
        assert (run / "config.json").exists() == whole
        if whole:
            assert len(json.loads((run / "config.json").read_text())["text"]) == 100_000


def test_metrics_read_back_exactly(tmp_path):
    metrics = [
        Metric(0.1 + 0.2, 0, "agent_0", "loss", 1 / 3),
        Metric(1e-300, 2**53 + 1, 'a,"b"', "episode_return", -math.inf),
        Metric(5.0, 7, "", "env_steps_per_s", 5e-324),
    ]
    with RunDirectory.create(tmp_path, {}) as run:
        for metric in metrics:
            run.csv.record(metric)
    assert (tmp_path / "metrics.csv").read_text().startswith("time_s,step,agent,name,value\n0.30000000000000004,")
    assert read_metrics(tmp_path / "metrics.csv") == metrics


def test_nan_and_numpy_numbers_read_back_as_floats(tmp_path):
    with RunDirectory.create(tmp_path, {}) as run:
        run.csv.record(Metric(np.float64(1.5), np.int64(4), "a", "loss", np.float32(0.1)))
        run.csv.record(Metric(2.0, 5, "a", "loss", math.nan))
    first, second = read_metrics(tmp_path / "metrics.csv")
    assert first == Metric(1.5, 4, "a", "loss", float(np.float32(0.1)))
    assert math.isnan(second.value)


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("time_s,step,agent,name,value\n1.0,1,a,loss,2.0\n2.0,2,a,loss,12")
    assert read_metrics(path) == [Metric(1.0, 1, "a", "loss", 2.0)]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("2.0,2,a", r"got '2.0,2,a\n' (not enough values"),
        ("2.0,2,a,loss,1.0,9", "(too many values"),
        ("soon,2,a,loss,1.0", "(could not convert string to float: 'soon')"),
        ("2.0,2.5,a,loss,1.0", "(invalid literal for int()"),
        ("\0" * 300, "..."),
        ("2.0,2,a,loss," + "1" * 200_000, "field larger than field limit"),
    ],
)
def test_a_damaged_line_of_metrics_is_named_with_its_file(tmp_path, line, words):
    path = tmp_path / "metrics.csv"
    path.write_text(f"time_s,step,agent,name,value\n1.0,1,a,loss,2.0\n{line}\n3.0,3,a,loss,2.0\n")
    with pytest.raises(ValueError, match="expected time_s,step,agent,name,value in line 3, got") as caught:
        read_metrics(path)
    message = str(caught.value)
    assert message.startswith(repr(str(path))) and words in message and "\n" not in message and len(message) < 600


def damage_metrics(run: Path) -> str:
    (run / "metrics.csv").write_text("time_s,step,agent,name,value\n1.0,1,a,loss\n1.0,2,a,lo")
    return "metrics.csv': expected time_s,step,agent,name,value in line 2"


def damage_config(run: Path) -> str:
    (run / "config.json").write_text('{"seed": ')
    return "config.json': expected a JSON object, got invalid JSON (Expecting value"


def replace_config(run: Path) -> str:
    (run / "config.json").write_text("[1, 2]")
    return "config.json': expected a JSON object, got [1, 2]"


def damage_progress(run: Path) -> str:
    (run / "checkpoints" / "run.json").write_bytes(b"\xff\0")
    return "run.json': expected the file as the run wrote it, got a changed or damaged one"


def replace_progress(run: Path) -> str:
    write_json(run / "checkpoints" / "run.json", {"time_s": 1.5, "steps": {"actor-0": -3}})
    return "run.json': expected time_s and steps, a number for each worker, got {'time_s': 1.5, 'steps'"


def replace_time(run: Path) -> str:
    write_json(run / "checkpoints" / "run.json", {"time_s": "NaN", "steps": {}})
    return "run.json': expected time_s and steps"


def remove_metrics(run: Path) -> str:
    (run / "metrics.csv").unlink()
    return "metrics.csv'"


@pytest.mark.parametrize(
    "damage",
    [
        damage_metrics,
        damage_config,
        replace_config,
        damage_progress,
        replace_progress,
        replace_time,
        remove_metrics,
    ],
)
def test_a_run_with_a_damaged_file_is_refused(tmp_path, damage):
    """A run with a damaged file is refused in one line that names it and left as it is."""
    RunDirectory.create(tmp_path / "run", {"seed": 1}).close()
    words = damage(tmp_path / "run")
    before = {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")}
    with pytest.raises(ValueError, match="expected") as caught:
        RunDirectory.resume(tmp_path / "run")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert {path: path.is_file() and path.read_bytes() for path in tmp_path.rglob("*")} == before


def test_a_resumed_run_goes_on_behind_its_last_whole_metric(tmp_path):
    with RunDirectory.create(tmp_path / "run", {}) as run:
        run.csv.record(Metric(1.0, 1, "a", "loss", 2.0))
    with (tmp_path / "run" / "metrics.csv").open("a") as file:
        file.write("2.0,2,a,loss,12")
    with RunDirectory.resume(tmp_path / "run") as run:
        run.csv.record(Metric(3.0, 3, "a", "loss", 4.0))
    found = read_metrics(tmp_path / "run" / "metrics.csv")
    assert found == [Metric(1.0, 1, "a", "loss", 2.0), Metric(3.0, 3, "a", "loss", 4.0)]


@pytest.mark.parametrize(("saved", "step", "kept"), [(0, 0, 0), (0, 20, 2), (1, 0, 1), (3, 20, 3)])
def test_metrics_of_steps_that_are_taken_again_are_cut_off(tmp_path, saved, step, kept):
    """A run that is killed before it saved its progress begins anew, and so do its metrics."""
    metrics = [Metric(0.5, step, "a\nb", "loss", 1.0) for step in (10, 20, 30, 40)]
    with RunDirectory.create(tmp_path / "run", {}) as run:
        run.keep()
        for count, metric in enumerate(metrics, 1):
            run.csv.record(metric)
            if count == saved:
                run.save_progress({})
    with RunDirectory.resume(tmp_path / "run") as run:
        run.csv.resume_at(step)
        run.csv.record(metrics[-1])
        run.save_progress({})
    assert read_metrics(tmp_path / "run" / "metrics.csv") == [*metrics[:kept], metrics[-1]]


def test_a_live_run_is_not_resumed(tmp_path):
    with RunDirectory.create(tmp_path / "run", {}) as run:
        run.csv.record(Metric(1.0, 1, "a", "loss", 2.0))
        with pytest.raises(ValueError, match=r"expected a run that has ended, got '.*/run', which is still running$"):
            RunDirectory.resume(tmp_path / "run")
    RunDirectory.resume(tmp_path / "run").close()


def test_another_file_is_refused(tmp_path):
    (tmp_path / "other.csv").write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="expected the header time_s,step,agent,name,value, got 'x,y'"):
        read_metrics(tmp_path / "other.csv")


def test_flush_makes_metrics_visible_to_readers_of_a_live_run(tmp_path):
    with RunDirectory.create(tmp_path, {}) as run:
        run.csv.record(Metric(1.0, 10, "a", "loss", 0.5))
        run.csv.flush()
        assert len(read_metrics(tmp_path / "metrics.csv")) == 1


def test_a_closed_run_takes_no_metrics_and_may_be_closed_again(tmp_path):
    run = RunDirectory.create(tmp_path, {})
    run.close()
    run.close()
    with pytest.raises(ClosedError):
        run.csv.record(Metric(0.0, 0, "a", "loss", 0.0))


def test_any_name_of_a_worker_or_agent_has_its_file(tmp_path):
    with RunDirectory.create(tmp_path, {}) as run:
        assert run.log_path("actor-0") == tmp_path / "logs" / "actor-0.log"
        assert run.checkpoint_path("agent_0") == tmp_path / "checkpoints" / "agent_0.pt"
        assert run.checkpoint_path("../red/1").parent == tmp_path / "checkpoints"


def test_a_worker_logs_time_process_level_message_and_warnings(tmp_path):
    program = """
import logging, multiprocessing, sys, warnings
from marlcore.training.record.run_directory import setup_logging
multiprocessing.current_process().name = "actor-0"
setup_logging(sys.argv[1])
logging.info("hello")
logging.debug("too quiet")
warnings.warn("careful")
"""
    log = tmp_path / "actor-0.log"
    done = subprocess.run([sys.executable, "-c", program, str(log)], check=True, capture_output=True, encoding="utf-8")
    assert done.stderr == ""
    lines = log.read_text().splitlines()
    assert lines[0][:4].isdigit()
    assert lines[0].endswith(" actor-0 INFO hello")
    assert " actor-0 WARNING " in lines[1]
    assert "careful" in lines[1]
    assert "too quiet" not in log.read_text()
    full = subprocess.run([sys.executable, "-c", program, "/dev/full"], check=True, capture_output=True)
    assert full.stderr == b"", "the parent tells of a full disk, in one line"


def test_no_planted_link_is_written_through_and_no_other_user_may_write(tmp_path):
    """The umask lets everybody write, and another user has put links where earlier versions wrote."""
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
    assert {path.name: f"{path.stat().st_mode & 0o7777:o}" for path in own if path.is_file()} == dict.fromkeys(
        ["config.json", "metrics.csv", "run.json"], "644"
    )
    assert {path.stat().st_mode & 0o777 for path in own if path.is_dir()} == {0o755}


def test_what_a_killed_writer_left_is_removed(tmp_path):
    (tmp_path / ".config.json.0123.new").write_text("half")
    write_atomically(tmp_path / "config.json", b"whole")
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


def test_a_deleted_folder_of_logs_is_made_again(tmp_path):
    with RunDirectory.create(tmp_path / "run", {}) as run:
        run.keep()
    run.log_path("actor-0").parent.rmdir()
    with RunDirectory.resume(tmp_path / "run") as run:
        assert run.log_path("actor-0").parent.is_dir()
