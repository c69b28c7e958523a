"""A pool of processes that answer requests, each one request at a time; a dead process's request goes to another.

The order of the replies is that of their arrival: a caller that needs the same result from any number of processes
merges them by their keys. This process never waits for a process while that one waits for this process: a process
gets its next request only once its reply was read whole.
"""

from __future__ import annotations

import multiprocessing
import pickle
import select
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing import spawn
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import cloudpickle

from ..errors import WorkerFailed
from .forkserver import ForkServer, leave
from .signals import Interrupts
from .worker import ChildProcess, surroundings

__all__ = ["Answer", "Pool"]

RETRIES = 3
_DONE, _FAILED = b"+", b"-"  # first byte of a message

Answer = Callable[[bytes], bytes]


class Pool:
    """Processes that answer requests; they live until the pool is closed, or this process dies.

    A process that dies is replaced, and its request is given to another one, so an answer must have no effect beside
    its reply.

    Args:
        make: called once in each process; returns the function that answers its requests. Definitions that another
            process cannot import are pickled by value.
        size: processes at most; each starts when it is needed.
        name: the first part of the processes' names.
        retries: how often a request is given to another process after its process died.
        preload: modules that the processes have imported when they start.
    """

    def __init__(
        self,
        make: Callable[[], Answer],
        size: int,
        *,
        name: str = "worker",
        retries: int = RETRIES,
        preload: Sequence[str] = (),
    ) -> None:
        self._make = cloudpickle.dumps(make)
        self._size, self._name, self._retries = size, name, retries
        self._interrupts = Interrupts()
        self._server = ForkServer(preload, hurry=lambda: self._interrupts.signum is not None)
        self._poll = select.poll()
        self._processes: list[_Process] = []
        self._started = 0
        self._deaths: Counter[int] = Counter()  # by key

    def begin(self) -> None:
        """Starts the server that forks the processes, without waiting for it."""
        self._uninterrupted(self._server.begin)

    @property
    def ready(self) -> bool:
        """Whether a process can start without a wait for the server."""
        return self._server.ready

    @property
    def idle(self) -> int:
        """Processes that run and have no request."""
        return sum(process.request is None for process in self._processes)

    @property
    def free(self) -> int:
        """Requests that can be given now; some of them would start a process."""
        return self._size - len(self._processes) + self.idle

    def ask(self, key: int, request: bytes) -> None:
        """Gives a request to a free process; `replies` returns the answer with this key.

        Raises: OSError: the system starts no process. WorkerFailed: each process that got the request died.
        """
        idle = [process for process in self._processes if process.request is None]
        process = idle[0] if idle else self._start()
        process.request = (key, request)
        try:
            process.connection.send_bytes(request)
        except OSError:  # it died meanwhile
            self._replace(process)

    def replies(self, seconds: float | None) -> list[tuple[int, memoryview]]:
        """The replies that came, each with its key; waits for the first at most so long, None for ever.

        Raises: WorkerFailed: an answer raised, or each process that got a request died.
        """
        found = []
        ready = {fd for fd, _ in self._poll.poll(None if seconds is None else seconds * 1000)}
        for process in [one for one in self._processes if {one.pidfd, one.connection.fileno()} & ready]:
            try:
                message = process.connection.recv_bytes() if process.connection.poll() else None
            except (EOFError, OSError):
                message = None
            if message is None:
                self._replace(process)
                continue
            assert process.request is not None
            if message.startswith(_FAILED):
                raise WorkerFailed(process.name, "worker", message[1:].decode())
            found.append((process.request[0], memoryview(message)[1:]))
            process.request = None
        return found

    def close(self) -> None:
        """Kills the processes."""
        self._uninterrupted(self._kill_all)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> _Process:
        def start() -> None:
            self._processes.append(_Process(self._server, f"{self._name}-{self._started}", self._make))

        self._uninterrupted(start)
        process = self._processes[-1]
        self._started += 1
        self._poll.register(process.pidfd, select.POLLIN)
        self._poll.register(process.connection, select.POLLIN)
        return process

    def _kill_all(self) -> None:
        for process in self._processes:
            process.kill()  # kill all before waiting for the first
        for process in [*self._processes]:
            self._drop(process)
        self._server.close()

    def _uninterrupted(self, act: Callable[[], None]) -> None:
        """Delivers a stop signal after `act`, so that no process is lost that was just started."""
        self._interrupts = Interrupts()
        try:
            with self._interrupts:
                act()
        finally:
            self._interrupts.deliver()

    def _replace(self, process: _Process) -> None:
        """Removes a dead process, and gives its request to another."""
        request = process.request
        process.kill()  # its connection may have ended first
        ending = process.ending().text
        self._drop(process)
        if request is None:
            return
        self._deaths[request[0]] += 1
        if self._deaths[request[0]] > self._retries:
            text = f"{ending}; so ended each of the {self._retries + 1} processes that got this request"
            raise WorkerFailed(process.name, "death", text)
        self.ask(*request)

    def _drop(self, process: _Process) -> None:
        self._processes.remove(process)
        for fd in (process.pidfd, process.connection.fileno()):
            try:
                self._poll.unregister(fd)
            except KeyError:  # a signal came between its start and its registration
                continue
        process.close()


class _Process(ChildProcess):
    """A process of a pool.

    Attributes:
        connection: carries a request there and its reply back.
        request: the key and the bytes of the request that it answers, or None.
    """

    def __init__(self, server: ForkServer, name: str, make: bytes) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        self.request: tuple[int, bytes] | None = None
        try:
            with theirs:
                super().__init__(name, server.fork(theirs.fileno(), _answer, surroundings(name), make))
        except BaseException:
            self.connection.close()
            raise

    def close(self) -> None:
        super().close()
        self.connection.close()


def _answer(connection: Connection, around: dict[str, Any], make: bytes) -> None:
    """Answers requests until the parent closes the connection or kills this process."""
    spawn.prepare(around)
    answer: Answer | None = None
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            leave(0)
        try:
            answer = answer or pickle.loads(make)()
            reply = _DONE + answer(request)
        except BaseException:
            reply = _FAILED + traceback.format_exc().encode()
        connection.send_bytes(reply)
