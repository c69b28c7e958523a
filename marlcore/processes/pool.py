"""A pool of processes, each of which answers one request at a time; if a process dies, another answers its request.

Replies are returned in the order of arrival. A process gets its next request only after its whole reply was read, so
that the two sides cannot block each other.
"""

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from ..closing import Closing
from ..errors import WorkerFailed
from .children import Child, Children, enter, message_of
from .pickling import dumps
from .serve import leave, readable

RETRIES = 3  # further processes that get a request whose process died
Answer = Callable[[bytes], bytes]


class Pool(Closing):
    """Processes that answer requests; they live until the pool is closed, or this process dies.

    A process that dies is replaced, and another process gets its request, so answering must have no side effects.
    `make`, called once in each process, returns the function that answers; definitions that a process cannot import
    are pickled by value. Up to `size` processes start, each when it is needed. `fork`: see `ForkServer`.
    """

    def __init__(
        self, make: Callable[[], Answer], size: int, *, name: str = "worker", preload: Sequence[str] = (),
        fork: bool | None = False,
    ) -> None:  # fmt: skip
        self._make = dumps(make)
        self._size, self._name = size, name
        self._children = Children(preload, fork=fork)
        self._started = 0
        self._requests: dict[int, bytes] = {}  # requests without a reply, keyed by `key`
        self._replies: dict[int, memoryview] = {}  # replies not yet returned, keyed by `key`
        self._deaths: Counter[int] = Counter()  # number of processes that died of a request, keyed by `key`
        self._asked: dict[Child, int] = {}  # by busy process: the key of its request
        self._cut: Child | None = None  # a child whose message may have been cut by an exception

    def begin(self) -> None:
        """Starts the server that forks the processes, without waiting for it."""
        with self._children.uninterrupted():
            self._children.server.begin()

    @property
    def ready(self) -> bool:
        """Whether a process can start without a wait for the server."""
        return self._children.server.ready

    @property
    def free(self) -> int:
        """The number of further requests that can be given now; some of them would start a process."""
        return self._size - len(self._asked)

    def ask(self, key: int, request: bytes) -> None:
        """Gives a request to a free process; `replies` returns the answer with this key.

        If an exception, such as a signal handler's, interrupts the call, the request stays in the pool, and asking
        again with the same key is harmless.

        Raises OSError if the system starts no process, WorkerFailed if each process that got the request died.
        """
        self._requests[key] = request
        self._deal()

    def replies(self, seconds: float | None) -> list[tuple[int, memoryview]]:
        """Returns the new replies, with their keys; waits up to `seconds` for the first (None: no limit).

        If a signal handler raises, the next call returns the replies that came before.

        Raises WorkerFailed if an answer raised, or if each process that got a request died; OSError as `ask` does.
        """
        self._deal()
        if not self._replies:
            fds = {child: {child.pidfd, child.connection.fileno()} for child in self._children.living}
            ready = readable(seconds, *set().union(*fds.values()))
            for child in [child for child in fds if ready & fds[child]]:
                self._receive(child)
            self._deal()
        for key in self._replies:
            self._requests.pop(key, None)
        replies, self._replies = self._replies, {}
        return [*replies.items()]

    def close(self) -> None:
        with self._children.uninterrupted():
            self._children.close()

    def _deal(self) -> None:
        if self._cut is not None:
            self._end(self._cut)
        dealt = {*self._asked.values(), *self._replies}
        for key, request in [*self._requests.items()]:
            if key not in dealt and self.free:
                child = next((child for child in self._children.living if child not in self._asked), None)
                self._cut = child = child or self._start()
                self._asked[child] = key
                child.send(request)
                self._cut = None

    def _start(self) -> Child:
        with self._children.uninterrupted():
            child = self._children.start(f"{self._name}-{self._started}", _answer, self._make)
        self._started += 1
        return child

    def _receive(self, child: Child) -> None:
        """Takes a process's reply or, if it is dead, removes it, so that `_deal` gives its request to another."""
        self._cut = child
        reply = child.receive()
        if reply is None:
            self._remove_dead(child)
            return
        key = self._asked[child]
        if isinstance(reply, WorkerFailed):
            self._requests.pop(key, None)
        else:
            self._replies[key] = reply
        del self._asked[child]
        self._cut = None
        if isinstance(reply, WorkerFailed):
            raise reply

    def _remove_dead(self, child: Child) -> None:
        """Removes a dead process. Raises WorkerFailed if its request has killed too many processes."""
        child.kill()  # the connection may have ended before the process
        ending, key = child.ending(), self._asked.get(child)
        self._end(child)
        if key is None:
            return
        self._deaths[key] += 1
        if self._deaths[key] > RETRIES:
            del self._requests[key]
            attempts = f"each of the {RETRIES + 1} processes that got this request ended in the same way"
            raise WorkerFailed(child.name, "death", f"{ending.traceback}; {attempts}")

    def _end(self, child: Child) -> None:
        self._children.end(child)
        self._asked.pop(child, None)
        self._cut = None


def _answer(connection: Connection, surroundings: dict[str, Any], make: bytes) -> None:
    enter(surroundings)
    answer: Answer | None = None

    def reply() -> bytes:
        nonlocal answer
        answer = answer or pickle.loads(make)()
        return answer(request)

    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            leave(0)
        connection.send_bytes(message_of(surroundings["name"], reply))
