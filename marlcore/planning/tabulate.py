"""Evaluates the caller's functions once in each state: in this process and, if that takes long, in workers."""

import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..errors import CallbackFailed, pass_on_from_handler
from ..processes import Pool
from ..unpickling import unpickled
from .batches import WAIT_S, Batches, BatchResult, packed
from .graph import Graph

T = TypeVar("T")
Numbers = Sequence[int]  # of states
Job = Callable[[Graph, Numbers], T]

WORTH_S = 1.0  # workers start if more seconds of work are left; their server takes 0.3 s to start
WORTH_A_STATE_S = 5e-6  # added to WORTH_S for each state, since every worker unpickles all states


@dataclass(frozen=True)
class Tabulate:
    """Evaluates jobs in a graph's states, in up to `workers` processes, this one included."""

    graph: Graph
    workers: int

    def __call__(self, job: Job[T], numbers: Numbers) -> list[T]:
        """Returns the results for batches of the states `numbers`, in order. Raises the first failed batch's error."""
        batches = Batches(numbers, partial(_evaluate, job, self.graph), self.workers)
        worth_s = WORTH_S + WORTH_A_STATE_S * len(self.graph)
        may_start = self.workers > 1
        results: list[T] = []
        with ExitStack() as pools:
            while batches.merged < len(numbers):
                if may_start and batches.pending * batches.cost > worth_s:
                    may_start, batches.pool = False, self._make_pool(job)
                    pools.enter_context(batches.pool or nullcontext())
                batches.attend(0.0 if batches.pending else WAIT_S)
                if batches.pending:
                    batches.evaluate_here()
                results.extend(batches.results())
        return results

    def _make_pool(self, job: Job[Any]) -> Pool | None:
        """Makes the workers; returns None if the job cannot be pickled: then only this process evaluates it."""
        try:
            make = partial(_answer_with, job, self.graph)
            return Pool(make, self.workers - 1, name="planner", preload=("marlcore.planning.induction",))
        except Exception as error:  # a class's own pickling may raise anything
            pass_on_from_handler(error)
            return None


def answers(what: str, states: Sequence[Any], calls: Iterable[T]) -> list[T]:
    """Collects the results of `calls`, one for each state.

    If a call raises, raises CallbackFailed, which names the state and the caller's function (by the text `what`).
    """
    returned: list[T] = []
    try:
        returned.extend(calls)
    except Exception as error:
        pass_on_from_handler(error)
        raise CallbackFailed(what, states[len(returned)], traceback.format_exc()) from error
    return returned


def _evaluate(job: Job[Any], graph: Graph, numbers: Numbers) -> BatchResult:
    try:
        return BatchResult(job(graph, numbers), None)
    except (CallbackFailed, ValueError) as error:
        return BatchResult(None, error)


def _answer_with(job: Job[Any], graph: Graph) -> Callable[[bytes], bytes]:
    return lambda request: packed(_evaluate(job, graph, unpickled(request)))
