"""A pool of processes that answer requests, each one request at a time; a dead process's request goes to another.

The order of the replies is that of their arrival: a caller that needs the same result from any number of processes
merges them by their keys. This process never waits for a process while that one waits for this process: a process
gets its next request only once its reply was read whole.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import select
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

import cloudpickle

from ..errors import WorkerFailed
from .forkserver import ForkServer, leave
from .signals import Interrupts
from .worker import ChildProcess, enter, has_ended, leave_if_forked, needing_descriptors, surroundings

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
        self._requests: dict[int, bytes] = {}  # by key: those without a reply
        self._replies: dict[int, memoryview] = {}  # by key: those that were not returned yet
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
        return sum(process.key is None for process in self._processes)

    @property
    def free(self) -> int:
        """Requests that can be given now; some of them would start a process."""
        return self._size - len(self._processes) + self.idle

    def ask(self, key: int, request: bytes) -> None:
        """Gives a request to a free process; `replies` returns the answer with this key.

        If an exception passes through, such as one of a signal handler, the request stays in the pool; to ask again
        with the same key is harmless.

        Raises: OSError: the system starts no process. WorkerFailed: each process that got the request died.
        """
        self._requests[key] = request
        self._deal()

    def replies(self, seconds: float | None) -> list[tuple[int, memoryview]]:
        """The replies that came, each with its key; waits for the first at most so long, None for ever.

        An exception of a signal handler passes through; the next call returns what came before it.

        Raises: WorkerFailed: an answer raised, or each process that got a request died. OSError: see `ask`.
        """
        self._deal()
        if not self._replies:
            ready = {fd for fd, _ in self._poll.poll(None if seconds is None else seconds * 1000)}
            for process in [one for one in self._processes if ready.intersection(one.fds)]:
                self._receive(process)
            self._deal()
        for key in self._replies:
            self._requests.pop(key, None)
        replies, self._replies = self._replies, {}
        return [*replies.items()]

    def close(self) -> None:
        """Kills the processes."""
        self._uninterrupted(self._kill_all)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _deal(self) -> None:
        """Gives each request that no process has to a free process."""
        for process in [process for process in self._processes if process.is_out_of_step]:
            self._drop(process)
        given = {process.key for process in self._processes} | self._replies.keys()
        for key, request in [*self._requests.items()]:
            if key not in given and self.free:
                idle = [process for process in self._processes if process.key is None]
                process = idle[0] if idle else self._start()
                for fd in process.fds:
                    self._poll.register(fd, select.POLLIN)
                process.is_out_of_step, process.key = True, key
                process.send(request)
                process.is_out_of_step = False

    def _receive(self, process: _Process) -> None:
        """Takes a reply, or notices the death of the process, whose request `_deal` then gives to another."""
        process.is_out_of_step = True
        message = process.receive()
        if message is None:
            self._bury(process)
            return
        assert process.key is not None
        if message.startswith(_FAILED):
            self._requests.pop(process.key, None)
        else:
            self._replies[process.key] = memoryview(message)[1:]
        process.key = None
        process.is_out_of_step = False
        if message.startswith(_FAILED):
            raise WorkerFailed(process.name, "worker", message[1:].decode())

    def _start(self) -> _Process:
        def start() -> None:
            self._processes.append(_Process(self._server, f"{self._name}-{self._started}", self._make))

        self._uninterrupted(start)
        self._started += 1
        return self._processes[-1]

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

    def _bury(self, process: _Process) -> None:
        """Removes a dead process. Raises WorkerFailed: so many processes died of its request."""
        process.kill()  # its connection may have ended first
        ending = process.ending().text
        self._drop(process)
        if process.key is None:
            return
        self._deaths[process.key] += 1
        if self._deaths[process.key] > self._retries:
            del self._requests[process.key]
            text = f"{ending}; so ended each of the {self._retries + 1} processes that got this request"
            raise WorkerFailed(process.name, "death", text)

    def _drop(self, process: _Process) -> None:
        """Closes a process; after an interrupt, the next call does what is left."""
        for fd in process.fds:
            try:
                self._poll.unregister(fd)
            except KeyError:  # a signal came between its start and its registration, or interrupted this
                continue
        process.close()
        self._processes.remove(process)


class _Process(ChildProcess):
    """A process of a pool.

    Attributes:
        connection: carries a request there and its reply back.
        fds: readable when a reply comes or the process has ended.
        key: of the request that it answers, or None.
        is_out_of_step: whether an exception, such as one of a signal handler, cut a message in two.
    """

    def __init__(self, server: ForkServer, name: str, make: bytes) -> None:
        with needing_descriptors(name):
            self.connection, theirs = multiprocessing.Pipe()
        self.key: int | None = None
        self.is_out_of_step = False
        try:
            with theirs, needing_descriptors(name):
                super().__init__(name, server.fork(theirs.fileno(), _answer, surroundings(name), make))
        except BaseException:
            self.connection.close()
            raise
        self.fds = (self.pidfd, self.connection.fileno())

    def send(self, request: bytes) -> None:
        """Sends a request; a dead process loses it, which its pidfd tells."""
        try:
            self.connection.send_bytes(request)
        except OSError as error:
            if not has_ended(error):
                raise

    def receive(self) -> bytes | None:
        """Its reply; None if it died."""
        try:
            return self.connection.recv_bytes() if self.connection.poll() else None
        except (EOFError, OSError) as error:
            if not has_ended(error):
                raise
            return None

    def close(self) -> None:
        super().close()
        self.connection.close()


def _answer(connection: Connection, around: dict[str, Any], make: bytes) -> None:
    """Answers requests until the parent closes the connection or kills this process."""
    enter(around)
    pid = os.getpid()
    answer: Answer | None = None
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            leave(0)
        try:
            answer = answer or pickle.loads(make)()
            reply = _DONE + answer(request)
            leave_if_forked(pid)
        except BaseException:
            leave_if_forked(pid)
            reply = _FAILED + traceback.format_exc().encode(errors="backslashreplace")
        connection.send_bytes(reply)
