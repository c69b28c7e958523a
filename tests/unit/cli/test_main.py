"""The command line as a whole: how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marlcore import IQN, Config, Result
from marlcore.__main__ import main
from marlcore.cli import gc
from marlcore.processes.control import Control
from marlcore.processes.signals import Interrupts
from marlcore.processes.telemetry import Telemetry
from marlcore.training.record.run_directory import RunDirectory


def unread(*arguments: str) -> tuple[int, str]:
    """What a command says on standard error whose standard output nobody reads any more, and its exit code."""
    reads, writes = os.pipe()
    os.close(reads)
    try:
        command = [sys.executable, "-m", "marlcore", *arguments]
        done = subprocess.run(command, stdout=writes, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(writes)
    return done.returncode, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["gc", "--dry-run"], ["gc", "--help"], ["doctor"]])
def test_a_command_that_nobody_listens_to_any_more_ends_quietly(arguments: list[str]) -> None:
    assert unread(*arguments) == (1, "")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_look_at_a_run_ends_quietly_with_its_reader(form: list[str]) -> None:
    with Telemetry.create(["actor-0"]) as telemetry:
        about = {"pid": os.getpid(), "total_steps": 1, "policies": {}, "telemetry": vars(telemetry.handle)}
        with Control.create(["actor-0"], run_dir="/a/run", **about):
            assert unread("top", "/a/run", "--interval", "0.05", *form) == (1, "")


@pytest.mark.parametrize("command", ["--version", "gc"])
def test_a_full_standard_output_is_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], command: str
) -> None:
    """It reads as if the run's disk were full otherwise."""
    monkeypatch.setattr(gc, "main", lambda arguments: print("nothing to remove", flush=True))
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main([command]) == 2
    assert capfd.readouterr().err == "marlcore: standard output: No space left on device\n"


def test_the_help_fits_80_columns(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert max(map(len, capfd.readouterr().out.splitlines())) <= 80


COMPLETE = "the run had taken all its steps; its metrics, curves and last checkpoints are in 'runs/a b'"


@pytest.mark.parametrize(
    ("run_dir", "taken", "says"),
    [
        ("", 0, "stopped"),
        ("runs/a b", 59, "stopped; resume with marlcore train --resume 'runs/a b'"),
        ("runs/a b", 60, f"stopped; {COMPLETE}"),
    ],
)
def test_a_stopped_run_says_how_to_go_on(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    run_dir: str,
    taken: int,
    says: str,
) -> None:
    """A run that has taken all its steps cannot be resumed with them."""
    monkeypatch.chdir(tmp_path)
    with RunDirectory.create("runs/a b", {"total_steps": 60}) as run:
        run.save_progress({"steps": {"actor-0": taken - 9, "actor-1": 9}})

    def stop(arguments: list[str]) -> int:
        Interrupts(signal.SIGINT).deliver(run_dir)
        return 0

    monkeypatch.setattr(gc, "main", stop)
    assert main(["gc"]) == 130
    assert capfd.readouterr().err == f"marlcore: {says}\n"


def test_train_needs_no_option(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the README's first command."""
    asked = []

    def run(*given: object, **also: object) -> Result:
        asked.append((given, also))
        raise ValueError("that was all")

    monkeypatch.setattr("marlcore.cli.train.run", run)
    assert main(["train"]) == 2
    assert capfd.readouterr().err == "marlcore: that was all\n"
    assert asked == [(("treasure_hunt", IQN(), Config()), {"resume": None})]


def test_another_broken_pipe_is_an_ordinary_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: list[str]) -> int:
        raise BrokenPipeError(32, "the server is gone")

    monkeypatch.setattr(gc, "main", fail)
    assert main(["gc"]) == 2
    assert capfd.readouterr().err == "marlcore: [Errno 32] the server is gone\n"
