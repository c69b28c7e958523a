"""Faults of the machine and of attackers end in one line."""

import errno
import os
import resource
import subprocess
import sys
from types import SimpleNamespace

import pytest

import marlcore as mc
from marlcore.__main__ import main
from marlcore.config import Config, Schedule, read_settings
from marlcore.memory import SHM_DIR, Segment
from marlcore.record import RunDirectory
from marlcore.run.serial import _guarded


def test_a_key_without_a_value_is_left_out_but_null_is_none(tmp_path):
    (tmp_path / "settings.yaml").write_text("updates_per_step: null\nlearner:\n  threads:\n")
    config = read_settings(tmp_path / "settings.yaml").config
    assert (config.updates_per_step, config.learner.threads) == (None, Config().learner.threads)


def test_only_true_and_false_are_flags(tmp_path):
    (tmp_path / "settings.yaml").write_text("learner: {obs_norm: off}\nreplay: {save: true}\nstop: {metric: No}")
    config = read_settings(tmp_path / "settings.yaml").config
    assert (config.learner.obs_norm, config.replay.save, config.stop.metric) == ("off", True, "No")


def test_a_schedule_of_many_brackets_is_refused():
    for text in ("linear(" + "-" * 90_000 + "1)", "linear(" + "[" * 90_000):
        with pytest.raises(ValueError, match=r"^epsilon: expected linear.start, .*, got 'linear\(") as caught:
            Schedule.from_value("epsilon", text)
        assert len(str(caught.value)) < 500


@pytest.fixture
def deleted(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    os.rmdir(tmp_path / "gone")


def test_a_deleted_working_directory_is_named(deleted, tmp_path, capsys):
    assert main(["gc"]) == 2
    assert capsys.readouterr().err == "marlcore: expected a working directory that exists, got a deleted one\n"
    for call in (lambda: mc.load_policy("run", "a"), Config(run_dir="run").with_absolute_paths):
        with pytest.raises(ValueError, match="'run': expected a working directory that exists, got a deleted one"):
            call()
    RunDirectory.create(tmp_path / "run", {}).close()  # which needs none


def test_a_limit_of_file_sizes_is_named_instead_of_docker():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(mc.SharedMemoryFull) as caught:
            Segment.create("test", {}, 1 << 21)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    asked = (1 << 21) + 4096
    expected = f"{SHM_DIR}: {asked} bytes asked for in one file, the limit of a file is 1048576; raise `ulimit -f`"
    assert str(caught.value) == expected


def test_a_missing_proc_is_named():
    mount = "mount -t tmpfs none /proc"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount over /proc")
    program = "from marlcore.memory import Segment; Segment.create('test', {}, 100)"
    command = ["unshare", "-m", "sh", "-c", f'{mount} && exec "$0" -c "$1"', sys.executable, program]
    said = subprocess.run(command, capture_output=True, check=False, text=True).stderr
    last = said.strip().rpartition("\n")[2]
    expected = "/proc/self/fd: expected /proc mounted, since shared memory is named and locked through it"
    assert last == f"marlcore.errors.MarlcoreError: {expected}"


def test_a_full_disk_ends_a_serial_run_in_one_line():
    def save():
        raise OSError(errno.ENOSPC, "No space left on device; 9 bytes were not written", "a.pt")

    with pytest.raises(mc.WorkerFailed) as caught:
        _guarded(SimpleNamespace(name="learner-a"), save)
    line = "learner-a failed: [Errno 28] No space left on device; 9 bytes were not written: 'a.pt'"
    assert str(caught.value) == line
