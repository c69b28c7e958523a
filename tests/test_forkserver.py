"""The process that forks workers: what it forks is as good as new, dies with it, and tells how it ended."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import Pipe, spawn
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import torch

from marlcore.forkserver import Forked, ForkServer, read_status


def tell(report: Connection, what: str) -> None:
    found = {
        "environment": lambda: os.environ.get("MARLCORE_TEST"),
        "blocked": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "numbers": lambda: np.random.random(),
        "descriptors": lambda: sorted(os.readlink(f"/proc/self/fd/{fd}") for fd in range(3, 100) if is_open(fd)),
    }
    report.send(found[what]())


def tell_of_gpus(report: Connection) -> None:
    report.send(torch.cuda._is_in_bad_fork())  # what keeps torch from opening the driver of NVIDIA's GPUs


def is_open(fd: int) -> bool:
    return os.path.lexists(f"/proc/self/fd/{fd}")


def end(report: Connection, how: int) -> None:
    if how < 0:
        os.kill(os.getpid(), -how)
    os._exit(how)


def linger(report: Connection) -> None:
    report.send(os.getpid())
    time.sleep(600.0)


class Child:
    """What a server forked, and what it reports."""

    def __init__(self, server: ForkServer, function: Callable[..., None], *args: Any) -> None:
        self._report, theirs = Pipe(duplex=False)
        with theirs:
            self.forked: Forked = server.fork(theirs.fileno(), function, *args)

    def receive(self) -> Any:
        return self._report.recv()

    def status(self) -> int | None:
        """Waits for it."""
        select.select([self.forked.pidfd], [], [])
        return read_status(self.forked.status)

    def close(self) -> None:
        self._report.close()
        os.close(self.forked.pidfd)
        os.close(self.forked.status)


@pytest.fixture
def server() -> Iterator[ForkServer]:
    with closing(ForkServer()) as one:
        yield one


@pytest.fixture(scope="module")
def lasting() -> Iterator[ForkServer]:
    """One for all the tests that leave it as it was; it runs before the first of them begins."""
    with closing(ForkServer()) as one:
        told(one, "numbers")
        yield one


def told(server: ForkServer, what: str) -> Any:
    with closing(Child(server, tell, what)) as child:
        found = child.receive()
        assert child.status() == 0
    return found


def test_what_is_forked_has_the_environment_and_the_signals_of_whoever_asked(
    server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MARLCORE_TEST", "here")
    assert told(server, "environment") == "here"
    assert told(server, "blocked") >= {signal.SIGINT, signal.SIGTERM}
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT, signal.SIGTERM}


def test_what_is_forked_may_open_a_gpu(lasting: ForkServer) -> None:
    """Only where torch was built for one is this more than a word: counting GPUs before the fork is enough to fail."""
    with closing(Child(lasting, tell_of_gpus)) as child:
        assert child.receive() is False


def test_each_process_has_random_numbers_of_its_own(lasting: ForkServer) -> None:
    assert len({told(lasting, "numbers") for _ in range(3)}) == 3


def test_what_is_forked_holds_nothing_of_the_server_and_its_other_children(lasting: ForkServer) -> None:
    with closing(Child(lasting, linger)) as other:
        other.receive()
        (pipe,) = told(lasting, "descriptors")  # but for what it reports through
    assert pipe.startswith("pipe:")


@pytest.mark.parametrize("how", [0, 3, int(-signal.SIGKILL), int(-signal.SIGSEGV)])
def test_how_a_process_ended_is_told(lasting: ForkServer, how: int) -> None:
    with closing(Child(lasting, end, how)) as child:
        assert child.status() == how


def test_a_killed_server_takes_its_children_along_and_is_started_again(server: ForkServer) -> None:
    children = [Child(server, linger) for _ in range(2)]
    try:
        for child in children:
            child.receive()
        os.kill(children[1].forked.pid, signal.SIGSTOP)  # one that could not end by itself
        first = server.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        assert [child.status() for child in children] == [None, None]
        assert told(server, "environment") is None
        assert server.pid != first
    finally:
        for child in children:
            child.close()


def test_a_stopped_server_is_replaced(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert told(server, "environment") is None
    stopped = server.pid
    assert stopped is not None
    os.kill(stopped, signal.SIGSTOP)
    monkeypatch.setattr("marlcore.forkserver.REPLY_S", 0.2)
    with closing(Child(server, linger)) as child:
        child.receive()
        assert server.pid != stopped


def test_whoever_is_in_a_hurry_does_not_wait_for_a_server_to_start() -> None:
    came = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(True))
    try:
        with closing(ForkServer(hurry=lambda: bool(came))) as server:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            with pytest.raises(InterruptedError, match="told to stop"):
                Child(server, tell, "environment")
            assert server.pid is None
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("python", "error"), [("/bin/false", ConnectionError), ("/nowhere/python", FileNotFoundError)])
def test_a_server_that_cannot_start_is_an_error(python: str, error: type[OSError], server: ForkServer) -> None:
    before = spawn.get_executable()
    spawn.set_executable(python)
    try:
        with pytest.raises(error):
            Child(server, tell, "environment")
    finally:
        spawn.set_executable(before)
    assert server.pid is None


def test_a_process_that_is_killed_takes_its_server_and_what_that_forked_along(program: Any) -> None:
    parent = program(
        """
        import os, signal, sys
        from test_forkserver import Child, linger
        from marlcore.forkserver import ForkServer

        server = ForkServer()
        child = Child(server, linger)
        child.receive()
        os.kill(child.forked.pid, signal.SIGSTOP)
        print(server.pid, child.forked.pid, flush=True)
        sys.stdin.read()
        """
    )
    pidfds = [os.pidfd_open(int(pid)) for pid in parent.line().split()]
    try:
        parent.kill()
        for pidfd in pidfds:
            select.select([pidfd], [], [])  # the pytest run's own time limit is what fails here
    finally:
        for pidfd in pidfds:
            os.close(pidfd)
