"""Evaluating the caller's functions once in each state: in this process, and in workers if they take long."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Iterator, Sequence, Sized
from contextlib import ExitStack, contextmanager
from functools import partial
from time import perf_counter
from typing import Any, Generic, NamedTuple, TypeVar

import cloudpickle

from ..errors import CallbackFailed, pass_on_from_handler
from ..processes import Pool
from .graph import Graph

T = TypeVar("T")
Numbers = Sequence[int]  # of states
Job = Callable[[Graph, Numbers], T]

WORTH_S = 1.0  # of work that is left, from which on workers are started; their server starts in 0.3 s
WORTH_A_STATE_S = 5e-6  # more for each state, since every worker unpickles all of them
OWN_S = 0.01  # of work in this process between two looks at the workers
BATCH_S = 0.05  # of work that a worker gets at a time
WAIT_S = 0.1
MOST = 4096  # states of a batch


class Tabulate:
    """Evaluates jobs in a graph's states.

    Args:
        workers: processes at most, this one included.
    """

    def __init__(self, graph: Graph, workers: int) -> None:
        self.graph = graph
        self._workers = workers

    def __call__(self, job: Job[T], numbers: Numbers) -> list[T]:
        """The job's results for batches of the states `numbers`, in their order.

        Raises: what the job raised in the first batch that failed. WorkerFailed: workers died of the same states.
        """
        return _Evaluation(self.graph, job, numbers, self._workers).run()

    def here(self, job: Job[T], numbers: Numbers) -> list[T]:
        """The same without workers."""
        return _Evaluation(self.graph, job, numbers, 1).run()


@contextmanager
def naming(what: str, states: Sequence[Any], done: Sized) -> Iterator[None]:
    """Raises CallbackFailed for an error inside, which arose in the state after the `done` ones."""
    try:
        yield
    except Exception as error:
        pass_on_from_handler(error)
        raise CallbackFailed(what, states[len(done)], traceback.format_exc()) from error


def stays_equal(thing: Any) -> bool:
    """Whether a pickled copy of something hashable is equal to it, and hashes alike."""
    try:
        copy = pickle.loads(cloudpickle.dumps(thing))
        return bool(copy == thing) and hash(copy) == hash(thing)
    except Exception as error:  # a class's own pickling may raise anything
        pass_on_from_handler(error)
        return False


class _Part(NamedTuple):
    """The result for a batch, or the error that it ended with."""

    result: Any
    failure: Exception | None


def _evaluate(job: Job[T], graph: Graph, numbers: Numbers) -> _Part:
    try:
        return _Part(job(graph, numbers), None)
    except (CallbackFailed, ValueError) as error:
        return _Part(None, error)


class _Evaluation(Generic[T]):
    """The states before `_handed` are evaluated or being evaluated; results are merged in the order of the states."""

    def __init__(self, graph: Graph, job: Job[T], numbers: Numbers, workers: int) -> None:
        self._graph, self._job, self._numbers, self._workers = graph, job, numbers, workers
        self._handed = 0
        self._parts: dict[int, tuple[int, _Part]] = {}  # by its place in `numbers`: the place after it, and the part
        self._ends: dict[int, int] = {}  # of the batches that workers have
        self._cost = 0.0  # seconds a state
        self._own, self._spent = 0, 0.0  # states evaluated here, and the seconds that they took

    @property
    def _pending(self) -> int:
        return len(self._numbers) - self._handed

    def run(self) -> list[T]:
        results: list[T] = []
        merged, pool = 0, None
        with ExitStack() as held:
            while merged < len(self._numbers):
                if pool is None and self._is_long and (pool := self._workers_pool()) is not None:
                    held.enter_context(pool).begin()
                if pool is not None and pool.ready:
                    self._attend(pool)
                if self._pending:
                    self._evaluate_here()
                while merged in self._parts:
                    merged, part = self._parts.pop(merged)
                    if part.failure is not None:
                        raise part.failure
                    results.append(part.result)
        return results

    @property
    def _is_long(self) -> bool:
        left = self._pending * self._cost
        return self._workers > 1 and left > WORTH_S + WORTH_A_STATE_S * len(self._graph)

    def _workers_pool(self) -> Pool | None:
        """None if the job cannot be pickled: how long it takes must not decide whether it fails."""
        make = partial(_Evaluator, self._graph, self._job)
        try:
            return Pool(make, self._workers - 1, name="planner", preload=("marlcore.planning.induction",))
        except Exception as error:  # a class's own pickling may raise anything
            pass_on_from_handler(error)
            self._workers = 1
            return None

    def _attend(self, pool: Pool) -> None:
        """Gives batches to free workers, and takes results; waits for one if there is nothing else to do."""
        while pool.free and self._pending:
            first = self._handed
            size = min(max(1, int(BATCH_S / self._cost)), -(-self._pending // self._workers), MOST)
            self._handed = self._ends[first] = first + size
            pool.ask(first, pickle.dumps(self._numbers[first : self._handed]))
        for first, reply in pool.replies(0.0 if self._pending else WAIT_S):
            self._parts[first] = self._ends.pop(first), pickle.loads(reply)

    def _evaluate_here(self) -> None:
        first, began = self._handed, perf_counter()
        size = min(max(1, int(OWN_S / self._cost)), MOST) if self._cost else 1
        self._handed = min(first + size, len(self._numbers))
        part = _evaluate(self._job, self._graph, self._numbers[first : self._handed])
        self._parts[first] = self._handed, part
        self._own += self._handed - first
        self._spent += perf_counter() - began
        self._cost = self._spent / self._own


class _Evaluator:
    """The function of a worker."""

    def __init__(self, graph: Graph, job: Job[Any]) -> None:
        self._graph = graph
        self._job = job

    def __call__(self, request: bytes) -> bytes:
        part = _evaluate(self._job, self._graph, pickle.loads(request))
        if isinstance(part.failure, CallbackFailed):
            part = _Part(None, part.failure.of(multiprocessing.current_process().name))
        found: bytes = cloudpickle.dumps(part)
        return found
