"""A worker's process: how its end is seen, and that nothing waits for it for ever."""

from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Callable
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from marlcore.processes import worker as processes
from marlcore.processes.forkserver import ForkServer
from marlcore.processes.worker import WorkerProcess, wait_any


def ends(*arguments: Any) -> None:
    """A worker's life that is over at once."""


def stays(*arguments: Any) -> None:
    """A worker's life that only a signal ends."""
    signal.pause()


def does(errors: Connection, *arguments: Any) -> None:
    """A worker's life that ends well, when its server is stopped."""
    while " T " not in Path(f"/proc/{os.getppid()}/stat").read_text():
        os.sched_yield()
    errors.send(None)


def leaves(errors: Connection, *arguments: Any) -> None:
    """A worker's life that ends without a word, as if all were well."""
    os._exit(0)


def forks(raises: bool) -> None:
    """A worker's work whose fork comes back from it first."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    elif raises:
        raise RuntimeError("in a fork")


def tell_title() -> None:
    raise RuntimeError(*(Path(f"/proc/self/{file}").read_text() for file in ("comm", "cmdline")))


Start = Callable[[Any], WorkerProcess]


@pytest.fixture
def start(fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Start:
    """start(life) is a worker's process that lives so; the test closes it."""

    def one(life: Any) -> WorkerProcess:
        monkeypatch.setattr(processes, "_work", life)
        return WorkerProcess(fork_server, "actor-0", bool)

    return one


@pytest.mark.long
def test_an_unnoted_end_ends_every_later_wait(start: Start) -> None:
    with closing(start(ends)) as ended, closing(start(stays)) as living:
        wait_any([ended], 3600.0)
        assert not ended.running
        wait_any([living, ended], 3600.0)
        assert living.running


def test_a_worker_that_said_done_needs_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_work", does)
    with closing(ForkServer()) as server, closing(WorkerProcess(server, "actor-0", bool)) as worker:
        assert server.pid is not None
        os.kill(server.pid, signal.SIGSTOP)
        try:
            wait_any([worker], 3600.0)
            assert worker.failure() is None
        finally:
            os.kill(server.pid, signal.SIGCONT)


def test_a_worker_that_left_without_a_word_has_failed(start: Start) -> None:
    with closing(start(leaves)) as worker:
        wait_any([worker], 3600.0)
        failure = worker.failure()
    assert failure is not None and failure.reason == "worker" and "exit code 0" in failure.text


@pytest.mark.parametrize("raises", [False, True], ids=["returns", "raises"])
def test_a_workers_fork_reports_nothing(fork_server: ForkServer, raises: bool) -> None:
    """An environment may fork; the fork is not the worker, and leaves where the environment's code ends."""
    with closing(WorkerProcess(fork_server, "actor-0", partial(forks, raises))) as worker:
        wait_any([worker], 3600.0)
        assert worker.failure() is None
        with pytest.raises(EOFError):  # it said "done" once
            worker._errors.recv()


@pytest.mark.parametrize("left", [0, 3, 5])
def test_too_few_descriptors_are_one_clear_line(fork_server: ForkServer, left: int) -> None:
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
            WorkerProcess(fork_server, "actor-0", bool)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)


def test_ps_names_a_worker_and_its_server(fork_server: ForkServer) -> None:
    with closing(WorkerProcess(fork_server, "learner-player_0", tell_title)) as worker:
        wait_any([worker], 3600.0)
        failure = worker.failure()
    assert failure is not None and r"('learner-player_\n', 'marlcore learner-player_0" in failure.text
    assert Path(f"/proc/{fork_server.pid}/cmdline").read_text().strip("\0") == "marlcore fork server"


def test_a_wait_for_the_living_ends_in_time(start: Start) -> None:
    with closing(start(stays)) as living:
        wait_any([living], 0.01)
        assert living.running


def test_a_process_that_cannot_end_is_named(
    start: Start, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that the kernel cannot end is named and left alone."""
    stuck = start(stays)
    monkeypatch.setattr(processes, "KILL_S", 0.1)
    monkeypatch.setattr(stuck, "kill", lambda: None)  # as if it were in a call that no signal ends
    with caplog.at_level(logging.ERROR):
        stuck.close()
    assert f"process {stuck.pid} did not end within 0.1 s of SIGKILL" in caplog.text
    os.kill(stuck.pid, signal.SIGKILL)
