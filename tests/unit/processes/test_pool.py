"""A pool answers every request, whatever process of it dies; a request that kills every process is named."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from marlcore import WorkerFailed
from marlcore.processes import Pool
from marlcore.processes import pool as pools
from marlcore.processes.forkserver import ForkServer


class Lasting(ForkServer):
    """A fork server that outlives the pool that uses it: to start one takes a while."""

    def close(self) -> None:
        """The fixture's server is closed by the fixture."""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    one = Lasting()
    with Pool(make, 1) as pool:
        pool._server = one
        pool.ask(0, b"")
    yield one
    ForkServer.close(one)


@pytest.fixture
def pool(server: ForkServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Pool]]:
    """pool(make, size) is a pool on the module's server, closed when the test ends."""
    monkeypatch.setattr(pools, "ForkServer", lambda preload, hurry: server)
    opened: list[Pool] = []

    def one(*arguments: Any, **options: Any) -> Pool:
        opened.append(Pool(*arguments, **options))
        return opened[-1]

    yield one
    for each in opened:
        each.close()


def make() -> Callable[[bytes], bytes]:
    return lambda request: b"%d " % os.getpid() + request


def answers(pool: Pool, count: int) -> dict[int, tuple[int, bytes]]:
    """By key: the process that answered, and what it said."""
    found: dict[int, tuple[int, bytes]] = {}
    while len(found) < count:
        for key, reply in pool.replies(None):
            assert key not in found
            pid, _, text = bytes(reply).partition(b" ")
            found[key] = int(pid), text
    return found


def test_each_request_is_answered_under_its_key(pool: Callable[..., Pool]) -> None:
    one = pool(make, 2)
    assert (one.idle, one.free) == (0, 2)
    one.ask(7, b"seven")
    one.ask(8, b"x" * (1 << 20))
    assert (one.idle, one.free) == (0, 0)
    found = answers(one, 2)
    assert found[7][1] == b"seven" and found[8][1] == b"x" * (1 << 20)
    assert found[7][0] != found[8][0] and (one.idle, one.free) == (2, 2)
    one.ask(9, b"again")
    assert answers(one, 1)[9][0] in (found[7][0], found[8][0])
    assert one.replies(0.0) == []


def test_what_answers_is_made_once_a_process(pool: Callable[..., Pool]) -> None:
    def counting() -> Callable[[bytes], bytes]:
        calls: list[bytes] = []

        def answer(request: bytes) -> bytes:
            calls.append(request)
            return b"0 %d" % len(calls)

        return answer

    one = pool(counting, 1)
    for call in (1, 2, 3):
        one.ask(call, b"")
        assert answers(one, 1)[call][1] == b"%d" % call


def test_an_answer_that_raises_is_raised_with_its_traceback(pool: Callable[..., Pool]) -> None:
    def bad() -> Callable[[bytes], bytes]:
        raise RuntimeError("nothing is made")

    one = pool(bad, 1, name="maker")
    one.ask(1, b"")
    with pytest.raises(WorkerFailed, match=r"(?s)maker-0 failed:.*RuntimeError: nothing is made") as caught:
        one.replies(None)
    assert (caught.value.worker, caught.value.reason) == ("maker-0", "worker")


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_processs_request_is_answered_by_another(pool: Callable[..., Pool], signum: int, tmp_path: Path) -> None:
    def waiting() -> Callable[[bytes], bytes]:
        def answer(request: bytes) -> bytes:
            path = Path(os.fsdecode(request))
            if not path.exists():  # the first process that is asked for it
                path.touch()
                time.sleep(3600.0)
            return b"%d done" % os.getpid()

        return answer

    one = pool(waiting, 2)
    one.ask(1, os.fsencode(tmp_path / "asked"))
    one.ask(2, os.fsencode(tmp_path))
    while not (tmp_path / "asked").exists():
        time.sleep(0.001)
    victim = next(process for process in one._processes if process.key == 1)
    os.kill(victim.pid, signum)
    found = answers(one, 2)
    assert found[1][1] == found[2][1] == b"done" and found[1][0] != victim.pid
    assert one.free == 2


def test_a_process_that_died_idle_is_replaced(pool: Callable[..., Pool]) -> None:
    one = pool(make, 1)
    one.ask(1, b"")
    first = answers(one, 1)[1][0]
    os.kill(first, signal.SIGKILL)
    while one._processes[0].running:
        time.sleep(0.001)
    one.ask(2, b"x" * (1 << 20))
    assert answers(one, 1)[2] != (first, b"x" * (1 << 20))


def test_a_request_that_kills_every_process_is_an_error(pool: Callable[..., Pool]) -> None:
    def dying() -> Callable[[bytes], bytes]:
        return lambda request: os._exit(3)

    one = pool(dying, 2, retries=2)
    one.ask(5, b"")
    expected = "exit code 3 and left no traceback; so ended each of the 3 processes that got this request"
    with pytest.raises(WorkerFailed, match=expected) as caught:
        while True:
            one.replies(None)
    assert caught.value.reason == "death"


def test_a_killed_server_is_replaced_with_its_processes(server: ForkServer) -> None:
    with Pool(make, 2) as one:
        one.ask(1, b"")
        answers(one, 1)
        assert one._server.pid is not None
        os.kill(one._server.pid, signal.SIGKILL)
        one.ask(2, b"two")
        one.ask(3, b"three")
        assert {text for _, text in answers(one, 2).values()} == {b"two", b"three"}


def test_a_server_is_started_without_a_wait() -> None:
    with closing(Pool(make, 1)) as one:
        assert not one.ready
        one.begin()
        assert one._server.pid is not None
        one.begin()
        while not one.ready:
            time.sleep(0.001)
        one.ask(1, b"x")
        assert answers(one, 1)[1][1] == b"x"
        assert one.ready


def test_a_signal_during_a_start_loses_no_process(pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is delivered once the process is known, so that closing the pool ends it."""
    forked = pools._Process.__init__

    def interrupted(self: Any, *arguments: Any) -> None:
        forked(self, *arguments)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(pools._Process, "__init__", interrupted)
    one = pool(make, 1)
    with pytest.raises(KeyboardInterrupt):
        one.ask(1, b"")
    assert len(one._processes) == 1


def test_large_requests_and_replies_never_wait_for_each_other(pool: Callable[..., Pool]) -> None:
    """Neither fits into a socket's buffer: a process that still sends its reply must get no request."""
    one = pool(make, 2)
    large, asked, answered = b"x" * (4 << 20), 0, []
    watchdog = threading.Timer(600.0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    watchdog.start()
    while len(answered) < 12:
        while one.free and asked < 12:
            one.ask(asked, large)
            asked += 1
        answered += [key for key, reply in one.replies(None) if bytes(reply).endswith(large)]
    watchdog.cancel()
    watchdog.join()
    assert sorted(answered) == [*range(12)]


@pytest.mark.parametrize(("call", "error"), [("_send", ConnectionResetError), ("_recv", TimeoutError)])
def test_what_a_signal_handler_raises_passes_through(
    pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch, call: str, error: type[Exception]
) -> None:
    """Also in the middle of a message: the calls after it give every answer, and each once."""

    def handler(*_: Any) -> None:
        monkeypatch.undo()
        raise error("the program's own limit")

    def interrupted(self: Connection, *arguments: Any) -> None:
        os.write(self.fileno(), b"\0") if call == "_send" else os.read(self.fileno(), 1)
        signal.raise_signal(signal.SIGALRM)

    one = pool(make, 2)
    one.ask(0, b"zero")
    before = signal.signal(signal.SIGALRM, handler)
    try:
        monkeypatch.setattr(Connection, call, interrupted)
        with pytest.raises(error, match="own limit"):
            one.ask(1, b"one")
            one.replies(None)
    finally:
        signal.signal(signal.SIGALRM, before)
    one.ask(1, b"one")
    assert {text for _, text in answers(one, 2).values()} == {b"zero", b"one"}
    assert one.replies(0.0) == [] and one.free == 2


def test_a_request_whose_answer_raises_is_over(pool: Callable[..., Pool]) -> None:
    """Its process answers the next request; a message that UTF-8 cannot hold is passed on escaped."""

    def failing() -> Callable[[bytes], bytes]:
        def answer(request: bytes) -> bytes:
            if not request:
                raise ValueError("a file named \udcff")
            return b"%d " % os.getpid() + request

        return answer

    one = pool(failing, 1)
    one.ask(0, b"first")
    pid, _ = answers(one, 1)[0]
    one.ask(1, b"")
    with pytest.raises(WorkerFailed, match=r"a file named \\udcff"):
        one.replies(None)
    assert one.replies(0.0) == [] and one.free == 1
    one.ask(1, b"again")
    assert answers(one, 1) == {1: (pid, b"again")}


def test_an_interrupted_close_is_finished_by_the_next(
    pool: Callable[..., Pool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor is left, and none is closed twice."""

    def interrupted(fd: int, seconds: float) -> bool:
        monkeypatch.undo()
        raise TimeoutError("the program's own limit")

    before = set(os.listdir("/proc/self/fd"))
    one = pool(make, 1)
    one.ask(0, b"")
    answers(one, 1)
    monkeypatch.setattr("marlcore.processes.worker.readable", interrupted)
    with pytest.raises(TimeoutError):
        one.close()
    one.close()
    one.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_fork_of_a_process_answers_nothing(pool: Callable[..., Pool]) -> None:
    def forking() -> Callable[[bytes], bytes]:
        def answer(request: bytes) -> bytes:
            child = os.fork()
            if child:
                os.waitpid(child, 0)
            return b"%d %d" % (os.getpid(), bool(child))

        return answer

    one = pool(forking, 1)
    for key in (1, 2):
        one.ask(key, b"")
        assert answers(one, 1)[key][1] == b"1"


def test_a_process_that_dies_in_its_reply_is_replaced(pool: Callable[..., Pool]) -> None:
    """Also if a fork of it lives on, which must not keep the connection open."""

    def forking() -> Callable[[bytes], bytes]:
        fork = os.fork()
        if fork == 0:
            signal.pause()
        return lambda request: b"%d " % fork + request

    one, forks, large = pool(forking, 1), [], b"x" * (4 << 20)  # fits into no socket's buffer
    one.ask(0, b"")
    forks.append(answers(one, 1)[0][0])
    one.ask(1, large)
    [process] = one._processes
    assert process.connection.poll(None)
    process.kill()
    fork, reply = answers(one, 1)[1]
    assert reply == large and fork not in forks and one.free == 1
    for pid in (*forks, fork):
        os.kill(pid, signal.SIGKILL)
