"""The command line as a whole: how it ends."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from marlcore import gc
from marlcore.__main__ import main
from marlcore.control import Control
from marlcore.telemetry import Telemetry


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


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["gc", "--dry-run"], ["gc", "--help"], ["doctor"]])
def test_a_command_that_nobody_listens_to_any_more_ends_quietly(arguments: list[str]) -> None:
    assert unread(*arguments) == (1, "")


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_look_at_a_run_ends_quietly_with_its_reader(form: list[str]) -> None:
    with Telemetry.create(["actor-0"]) as telemetry:
        about = {"pid": os.getpid(), "total_steps": 1, "batch_size": 1, "telemetry": vars(telemetry.handle)}
        with Control.create(["actor-0"], run_dir="/a/run", **about):
            assert unread("top", "/a/run", "--interval", "0.05", *form) == (1, "")


def test_a_pipe_of_something_else_that_breaks_is_an_error_like_any_other(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(arguments: list[str]) -> int:
        raise BrokenPipeError(32, "the server is gone")

    monkeypatch.setattr(gc, "main", fail)
    assert main(["gc"]) == 2
    assert capfd.readouterr().err == "marlcore: [Errno 32] the server is gone\n"
