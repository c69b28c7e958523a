"""A pool answers every request, whichever of its processes dies, and names a request that kills every process."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from marlcore import WorkerFailed
from marlcore.processes import Pool, children

Open = Callable[..., Pool]
LARGE = b"x" * (4 << 20)  # fits into no socket's buffer


@pytest.fixture
def open_pool(shared_fork_server: None) -> Iterator[Open]:
    """open_pool(make, size) is a pool on the server that tests share; it is closed when the test ends."""
    with ExitStack() as stack:
        yield lambda *arguments, **options: stack.enter_context(Pool(*arguments, **options))


def echo() -> Callable[[bytes], bytes]:
    return lambda request: b"%d " % os.getpid() + request


def ask(pool: Pool, key: int, request: bytes = b"") -> tuple[int, bytes]:
    """Asks one request; returns the number and the text of its answer."""
    pool.ask(key, request)
    return answers(pool, 1)[key]


def answers(pool: Pool, count: int) -> dict[int, tuple[int, bytes]]:
    """Returns answers by key, each as its first number, mostly its process, and the rest."""
    replies: dict[int, tuple[int, bytes]] = {}
    while len(replies) < count:
        for key, reply in pool.replies(None):
            assert key not in replies
            number, _, text = bytes(reply).partition(b" ")
            replies[key] = int(number), text
    return replies


def test_each_request_is_answered_under_its_key(open_pool: Open) -> None:
    pool = open_pool(echo, 2)
    assert pool.free == 2
    pool.ask(7, b"seven")
    pool.ask(8, LARGE)
    assert pool.free == 0
    replies = answers(pool, 2)
    assert replies[7][1] == b"seven" and replies[8][1] == LARGE
    assert replies[7][0] != replies[8][0] and pool.free == 2
    pool.ask(9, b"again")
    assert answers(pool, 1)[9][0] in (replies[7][0], replies[8][0])
    assert pool.replies(0.0) == []


def test_a_process_makes_its_answering_function_once(open_pool: Open) -> None:
    def counting() -> Callable[[bytes], bytes]:
        calls = itertools.count(1)
        return lambda request: b"%d" % next(calls)

    pool = open_pool(counting, 1)
    assert [ask(pool, call)[0] for call in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV])
def test_a_dead_processs_request_is_answered_by_another(open_pool: Open, signum: int, tmp_path: Path) -> None:
    def answer(request: bytes) -> bytes:
        if not (path := Path(os.fsdecode(request))).exists():  # the first process that is asked for it
            path.touch()
            os.kill(os.getpid(), signum)
        return b"%d done" % os.getpid()

    pool = open_pool(lambda: answer, 2)
    pool.ask(1, os.fsencode(tmp_path / "asked"))
    pool.ask(2, os.fsencode(tmp_path))
    replies = answers(pool, 2)
    assert replies[1][1] == replies[2][1] == b"done"
    assert pool.free == 2


def test_a_process_that_died_idle_is_replaced(open_pool: Open) -> None:
    pool = open_pool(echo, 1)
    first, _ = ask(pool, 1)
    pidfd = os.pidfd_open(first)
    os.kill(first, signal.SIGKILL)
    children.readable(None, pidfd)
    os.close(pidfd)
    second, text = ask(pool, 2, LARGE)
    assert second != first and text == LARGE


def test_a_request_that_kills_every_process_is_an_error(open_pool: Open) -> None:
    pool = open_pool(lambda: lambda request: os._exit(3), 2)
    pool.ask(5, b"")
    expected = "exit code 3 and left no traceback; each of the 4 processes that got this request ended in the same way"
    with pytest.raises(WorkerFailed, match=expected) as caught:
        while True:
            pool.replies(None)
    assert caught.value.reason == "death"


def test_a_killed_server_is_replaced() -> None:
    """`begin` does not wait for the server."""
    with Pool(echo, 2) as pool:
        server = pool._children.server
        assert not pool.ready
        for _ in range(2):
            pool.begin()
        first = server.pid
        assert first is not None
        while not pool.ready:
            time.sleep(0.001)
        ask(pool, 1)
        os.kill(first, signal.SIGKILL)
        pool.ask(2, b"two")
        pool.ask(3, b"three")
        assert {text for _, text in answers(pool, 2).values()} == {b"two", b"three"}
        assert server.pid != first


def test_a_signal_during_a_start_loses_no_process(open_pool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal is delivered once the pool knows the process, so that closing the pool ends it."""
    started: list[Any] = []

    class Interrupted(children.Child):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(children, "Child", Interrupted)
    pool = open_pool(echo, 1)
    with pytest.raises(KeyboardInterrupt):
        pool.ask(1, b"")
    assert len(started) == 1 and pool._children.living == started


def test_large_requests_and_replies_never_wait_for_each_other(open_pool: Open) -> None:
    """A process that still sends its reply must get no request."""
    pool = open_pool(echo, 2)
    asked, answered = 0, []
    watchdog = threading.Timer(600.0, lambda: os.kill(os.getpid(), signal.SIGKILL))
    watchdog.start()
    while len(answered) < 8:
        while pool.free and asked < 8:
            pool.ask(asked, LARGE)
            asked += 1
        answered += [key for key, reply in pool.replies(None) if bytes(reply).endswith(LARGE)]
    watchdog.cancel()
    watchdog.join()
    assert sorted(answered) == [*range(8)]


@pytest.mark.parametrize(("call", "error"), [("_send", ConnectionResetError), ("_recv", TimeoutError)])
def test_an_error_of_a_signal_handler_passes_through(
    open_pool: Open, monkeypatch: pytest.MonkeyPatch, call: str, error: type[Exception]
) -> None:
    """Even if it cuts a message in two, later calls return every answer once."""

    def handler(*_: Any) -> None:
        monkeypatch.undo()
        raise error("the program's own limit")

    def interrupted(self: Connection, *arguments: Any) -> None:
        os.write(self.fileno(), b"\0") if call == "_send" else os.read(self.fileno(), 1)
        signal.raise_signal(signal.SIGALRM)

    pool = open_pool(echo, 2)
    pool.ask(0, b"zero")
    before = signal.signal(signal.SIGALRM, handler)
    try:
        monkeypatch.setattr(Connection, call, interrupted)
        with pytest.raises(error, match="own limit"):
            pool.ask(1, b"one")
            pool.replies(None)
    finally:
        signal.signal(signal.SIGALRM, before)
    pool.ask(1, b"one")
    assert {text for _, text in answers(pool, 2).values()} == {b"zero", b"one"}
    assert pool.replies(0.0) == [] and pool.free == 2


def test_a_request_whose_answer_raises_is_over(open_pool: Open) -> None:
    """Its process answers the next request; a message that UTF-8 cannot hold is escaped."""

    def answer(request: bytes) -> bytes:
        if not request:
            raise ValueError("a file named \udcff")
        return b"%d " % os.getpid() + request

    pool = open_pool(lambda: answer, 1, name="maker")
    pid, _ = ask(pool, 0, b"first")
    pool.ask(1, b"")
    with pytest.raises(WorkerFailed, match=r"(?s)maker-0 failed:.*a file named \\udcff") as caught:
        pool.replies(None)
    assert (caught.value.worker, caught.value.reason) == ("maker-0", "worker")
    assert pool.replies(0.0) == [] and pool.free == 1
    assert ask(pool, 1, b"again") == (pid, b"again")


def test_an_interrupted_close_is_finished_by_the_next(open_pool: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every descriptor is closed, and only once."""

    def interrupted(seconds: float, *fds: int) -> set[int]:
        monkeypatch.undo()
        raise TimeoutError("the program's own limit")

    before = set(os.listdir("/proc/self/fd"))
    pool = open_pool(echo, 1)
    ask(pool, 0)
    monkeypatch.setattr(children, "readable", interrupted)
    with pytest.raises(TimeoutError):
        pool.close()
    pool.close()
    pool.close()
    assert set(os.listdir("/proc/self/fd")) == before


def test_a_fork_of_a_process_answers_nothing(open_pool: Open) -> None:
    def answer(request: bytes) -> bytes:
        child = os.fork()
        if child:
            os.waitpid(child, 0)
        return b"%d" % bool(child)

    pool = open_pool(lambda: answer, 1)
    assert [ask(pool, key)[0] for key in (1, 2)] == [1, 1]


def test_a_process_that_dies_in_its_reply_is_replaced(open_pool: Open) -> None:
    """A fork of the process may live on; it must not keep the connection open."""

    def forking() -> Callable[[bytes], bytes]:
        fork = os.fork()
        if fork == 0:
            signal.pause()
        return lambda request: b"%d " % fork + request

    pool = open_pool(forking, 1)
    first, _ = ask(pool, 0)
    pool.ask(1, LARGE)
    [process] = pool._children.living
    assert process.connection.poll(None)
    process.kill()
    second, reply = answers(pool, 1)[1]
    assert reply == LARGE and second != first and pool.free == 1
    for pid in (first, second):
        os.kill(pid, signal.SIGKILL)
