"""Evaluates batches of states in this process and in workers; returns the results in the order of the states.

Workers get states only if evaluating them takes longer than sending them. This process evaluates, too, so no workers
are started for little work.
"""

import multiprocessing
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import cloudpickle

from .. import cgroup
from ..checks import check_whole
from ..errors import CallbackFailed, WorldModelFailed, pass_on_from_handler
from ..processes import Pool
from ..unpickling import unpickled

BATCH_S = 0.05  # seconds of work in a worker's batch
OWN_S = 0.005  # seconds of work in a batch of this process
LEAST_S = 0.001  # a batch of fewer seconds is not worth sending
MOST = 4096  # the largest number of states in a batch
WAIT_S = 0.1  # the longest wait for workers, so that signals are seen
TRIED = 4  # batches to send before the cost of sending is judged


def count_workers(workers: int | None) -> int:
    """Returns the number of workers, by default one for each processor. Raises ValueError if it is below 1."""
    if workers is None:
        return cgroup.processors()
    check_whole("workers", workers)
    return workers


class BatchResult(NamedTuple):
    """The result for a batch of states, and the error, if any, that ended the batch early."""

    result: Any
    failure: Exception | None


def packed(batch: BatchResult) -> bytes:
    """Pickles a worker's reply; adds the worker's name to an error that the user's code raised."""
    if isinstance(batch.failure, (CallbackFailed, WorldModelFailed)):
        batch = batch._replace(failure=batch.failure.of(multiprocessing.current_process().name))
    reply: bytes = cloudpickle.dumps(batch)
    return reply


def stays_equal(thing: Any) -> bool:
    """Returns whether a pickled copy of a hashable object is equal to it and has the same hash."""
    try:
        copy = unpickled(cloudpickle.dumps(thing))
        return bool(copy == thing) and hash(copy) == hash(thing)
    except Exception as error:  # a class's own pickling may raise anything
        pass_on_from_handler(error)
        return False


@dataclass
class Batches:
    """Splits a list of states, which may grow meanwhile, into batches, and evaluates them."""

    states: Sequence[Any]
    evaluate: Callable[[Sequence[Any]], BatchResult]  # in this process
    workers: int  # the number of processes that evaluate, this one included
    size: int | None = None  # states of a worker's batch; if given, workers start at once. None: 50 ms of work
    pool: Pool | None = None  # answers each batch by a `packed` result; None: no workers
    started: bool = False  # whether the pool's workers were started
    handed: int = 0  # states below this number are evaluated, or are being evaluated
    merged: int = 0  # results of states below this number were returned
    cost: float = 0.0  # seconds per state in this process
    _sending: float = 0.0  # seconds that this process took to send states, and to read and merge the results
    _sent_batches: int = 0
    _sent_states: int = 0
    _ends: dict[int, int] = field(default_factory=dict)  # by a batch's first state: the state after the batch
    _results: dict[int, BatchResult] = field(default_factory=dict)  # by a batch's first state, until returned in order

    @property
    def pending(self) -> int:
        return len(self.states) - self.handed

    def attend(self, seconds: float = 0.0) -> None:
        """Waits at most `seconds` for results of workers, collects them, and sends states to idle workers."""
        if self.pool is None:
            return
        if self.size is not None:
            self._start(self.pool)
        self._take(self.pool, seconds)
        while size := self._next_size():
            self._start(self.pool)
            if not (self.started and self.pool.free):
                return
            began = perf_counter()
            first, end = self.handed, self.handed + size
            self._ends[first] = self.handed = end
            self.pool.ask(first, cloudpickle.dumps(self.states[first:end]))
            self._sent_batches += 1
            self._sent_states += size
            self._sending += perf_counter() - began

    def evaluate_here(self) -> None:
        first, began, sending = self.handed, perf_counter(), self._sending
        size = min(self.pending, max(1, int(OWN_S / self.cost)) if self.cost else 1, MOST)
        self._ends[first] = self.handed = first + size
        self._results[first] = self.evaluate(self.states[first : first + size])
        self.took(size, perf_counter() - began - (self._sending - sending))

    def took(self, states: int, seconds: float) -> None:
        """Updates the cost of a state, given how long this process took to evaluate `states` states."""
        cost = seconds / states
        self.cost = 0.75 * self.cost + 0.25 * cost if self.cost else cost

    def results(self) -> Iterator[Any]:
        """Yields results in the order of the states, up to the first missing one. Raises a failed batch's error."""
        while (batch := self._results.pop(self.merged, None)) is not None:
            if batch.failure is not None:
                raise batch.failure
            self.merged, began = self._ends.pop(self.merged), perf_counter()
            yield batch.result
            self._sending += perf_counter() - began  # includes the time that the caller takes to merge the result

    def _take(self, pool: Pool, seconds: float) -> None:
        if not self.started:
            return
        for first, reply in pool.replies(seconds):
            began = perf_counter()
            if first >= 0:
                self._results[first] = unpickled(reply)
            self._sending += perf_counter() - began

    def _next_size(self) -> int:
        share = -(-(self.pending - 1) // self.workers)  # leaves at least one state for this process
        if self.size is not None:
            return min(self.size, share)
        is_costly = self._sent_batches >= TRIED and self._sending > self._sent_states * self.cost
        if is_costly or min(share * self.cost, BATCH_S) < LEAST_S:
            return 0
        return min(max(1, int(BATCH_S / self.cost)), share, MOST)

    def _start(self, pool: Pool) -> None:
        """Starts the workers once their server is ready; if `size` is given, waits until all of them run."""
        if self.started:
            return
        pool.begin()
        if pool.ready or self.size is not None:
            for number in range(1, self.workers):
                pool.ask(-number, pickle.dumps([]))  # the reply says that the worker has started
            self.started = True
        while self.size is not None and pool.free < self.workers - 1:
            self._take(pool, WAIT_S)
