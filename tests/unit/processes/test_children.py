"""Child processes: the parent sees how each ends, never waits for ever for one, and loses none."""

import errno
import logging
import os
import re
import resource
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import until

import marlcore as mc
from marlcore import WorkerFailed
from marlcore.checks import check_whole
from marlcore.envs import vectorize
from marlcore.processes import Children, ForkServer, children, failure_of, setup_worker

LONG_S = 3600.0


def end(connection: Connection, *arguments: Any) -> None:
    """Ends the process at once, without a message."""
    os._exit(0)


def stay(connection: Connection, *arguments: Any) -> None:
    """Waits until a signal ends the process."""
    signal.pause()


def await_stopped_server() -> None:
    while " T " not in Path(f"/proc/{os.getppid()}/stat").read_text():
        os.sched_yield()


def fork(raises: bool) -> None:
    """Forks; the fork returns from this function first."""
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == raises
    elif raises:
        raise RuntimeError("in a fork")


def tell_title() -> None:
    raise RuntimeError(*(Path(f"/proc/self/{file}").read_text() for file in ("comm", "cmdline")))


class OutOfFuel(mc.TreasureHunt):
    def step(self, action: Any) -> None:
        self.burn()

    def burn(self) -> None:
        raise RuntimeError("out of fuel")


def step_once() -> None:
    with closing(vectorize(OutOfFuel, 1)) as env:
        env.reset(0)
        _, (turn, *_) = env.observe()
        env.act(turn, np.zeros(1, np.int64))


def of_main() -> None:
    """Stands in for a function of a script that its environment runs in a process of its own."""


def spawn_of_main() -> None:
    of_main.__module__ = "__main__"
    get_context("spawn").Process(target=of_main).start()


@pytest.fixture
def owner(shared_fork_server: None) -> Iterator[Children]:
    with closing(Children()) as owner:
        yield owner


def test_a_wait_ends_with_a_death_or_the_time(owner: Children) -> None:
    living = owner.start("living", stay)
    owner.wait(0.01)
    assert living.running
    for signum, stopped in ((signal.SIGSTOP, True), (signal.SIGCONT, False)):
        os.kill(living.pid, signum)
        until(lambda stopped=stopped: living.is_stopped == stopped)
    ended = owner.start("ended", end)
    for _ in range(2):  # also a later wait, if nobody noted the end
        owner.wait(LONG_S)
        assert living.running and not ended.running


def test_a_worker_that_said_done_needs_no_server() -> None:
    with closing(Children(preload=())) as owner:
        worker = owner.start_worker("actor-0", await_stopped_server)
        assert owner.server.pid is not None
        os.kill(owner.server.pid, signal.SIGSTOP)
        try:
            owner.wait(LONG_S)
            assert worker.failure() is None
        finally:
            os.kill(owner.server.pid, signal.SIGCONT)


def test_a_worker_that_left_without_a_word_has_failed(owner: Children) -> None:
    worker = owner.start("actor-0", end)
    owner.wait(LONG_S)
    failure = worker.failure()
    assert failure is not None and failure.reason == "worker" and "exit code 0" in failure.traceback


def test_a_child_of_a_worker_that_stands_in_main_is_explained(owner: Children) -> None:
    worker = owner.start_worker("actor-0", spawn_of_main)
    owner.wait(LONG_S)
    failure = worker.failure()
    assert failure is not None and failure.traceback.splitlines()[-1] == children.OF_MAIN


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_workers_fork_reports_nothing(owner: Children, raises: bool) -> None:
    """A fork that an environment made is not the worker, and ends where the environment's code ends."""
    worker = owner.start_worker("actor-0", partial(fork, raises))
    owner.wait(LONG_S)
    assert worker.failure() is None
    assert worker.receive() is None  # it said "done" once


@pytest.mark.parametrize("left", [0, 3, 5])
def test_too_few_descriptors_are_one_clear_line(owner: Children, left: int) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.dup(0))
        for _ in range(left):
            os.close(taken.pop())
        with pytest.raises(OSError, match="actor-0: expected a free file descriptor, got none below the limit of 256"):
            owner.start_worker("actor-0", bool)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)


def test_ps_names_a_worker_and_its_server(owner: Children, fork_server: ForkServer) -> None:
    worker = owner.start_worker("learner-player_0", tell_title)
    owner.wait(LONG_S)
    failure = worker.failure()
    assert failure is not None and r"('learner-player_\n', 'marlcore learner-player_0" in failure.traceback
    assert Path(f"/proc/{fork_server.pid}/cmdline").read_text().strip("\0") == "marlcore fork server"


def test_a_process_that_cannot_end_is_named(
    owner: Children, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stuck = owner.start("actor-0", stay)
    monkeypatch.setattr(children, "KILL_S", 0.1)
    monkeypatch.setattr(stuck, "kill", lambda: None)  # as if it were in a call that no signal ends
    with caplog.at_level(logging.ERROR):
        owner.end(stuck)
    assert f"process {stuck.pid} did not end within 0.1 s of SIGKILL" in caplog.text
    os.kill(stuck.pid, signal.SIGKILL)


@pytest.mark.parametrize("logs", [True, False])
def test_a_failure_shows_the_users_frames_if_the_log_has_all(owner: Children, tmp_path: Path, logs: bool) -> None:
    """Of the package's frames it shows only those that called the user's code."""
    log = tmp_path / "actor-0.log"
    worker = owner.start_worker("actor-0", step_once, prepare=partial(setup_worker, log if logs else None))
    owner.wait(LONG_S)
    failure = worker.failure()
    assert failure is not None and failure.reason == "environment"
    said = failure.traceback
    places = re.findall(r'File ".*/(.+)", line \d+, in (.+)', said)
    assert ("test_children.py", "burn") in places and said.strip().endswith("RuntimeError: out of fuel")
    assert (said.startswith("(without marlcore's own frames)\nTraceback")) == logs
    if logs:
        of_the_environment = [("copies.py", "act"), ("test_children.py", "step"), ("test_children.py", "burn")]
        of_the_work = [("children.py", "work"), ("test_children.py", "step_once"), ("copies.py", "act")]
        assert places == [*of_the_environment, *of_the_work[:2]]
        assert "in message_of" in log.read_text() and "in raise_in_copy" in log.read_text()


def test_an_error_of_the_package_itself_is_shown_whole() -> None:
    try:
        check_whole("envs", 0)
    except ValueError as error:
        own = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        assert not children.short_traceback(own)


@pytest.mark.parametrize("where", [[], ["a.pt"]], ids=["a file of the user", "a file of the run"])
def test_a_full_disk_of_the_run_fails_in_one_line(where: list[str]) -> None:
    try:
        raise OSError(errno.ENOSPC, "No space left on device; 9 bytes were not written", *where)
    except OSError as error:
        failure = failure_of("learner-a", error)
    line = "learner-a failed: [Errno 28] No space left on device; 9 bytes were not written: 'a.pt'"
    assert (str(failure) == line) == bool(where) and ("Traceback" in failure.traceback) != bool(where)
    assert isinstance(failure, WorkerFailed) and failure.reason == "worker"
