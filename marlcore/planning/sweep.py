"""Sweeps over a graph's levels from the terminal states to the initial state, for every kind of backward induction.

States of a level do not depend on one another, so threads share a large level: kernels release the GIL and write to
disjoint rows of the same arrays. Neighbouring small levels are swept by one thread in one call.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import groupby
from queue import SimpleQueue

import numpy as np
from numpy.typing import NDArray

from .graph import Graph

Numbers = NDArray[np.int64]  # of states
Progress = Callable[[int, int], None]  # (states done, all states)
Step = Callable[[Numbers], None]

SPLIT = 1 << 16  # for less work, about half a millisecond of one thread, threads cost more time than they save
CHUNK = 1 << 20  # the most work in a call of a kernel, some ten milliseconds, so that interrupts are handled soon


def work_of(graph: Graph, width: int) -> NDArray[np.float64]:
    """Returns each state's number of products (outcomes times `width` goals) plus 1: float64 [states]."""
    return np.diff(graph.start[graph.row_start]) * float(width) + 1.0


def sweep(
    levels: Sequence[Numbers],
    work: NDArray[np.float64],
    threads: int,
    step: Step,
    after: Step | None = None,
    progress: Progress | None = None,
) -> None:
    """For each level in order, calls `step` with parts of the level's states, then `after` with all of its states.

    Threads share the calls of `step` for large levels; this thread calls `after`. If several calls of `step` fail,
    raises the exception for the earliest part.
    """
    done, total = 0, sum(map(len, levels))
    with ThreadPoolExecutor(max(1, threads), "marlcore-sweep") as pool:
        for numbers, large in _stretches(levels, work, together=after is None):
            chunks = _chunks(numbers, work, threads if large else 1)
            if threads > 1 and len(chunks) > 1 and large:
                _share(pool, step, chunks)
            else:
                for chunk in chunks:
                    step(chunk)
            if after is not None:
                after(numbers)
            done += len(numbers)
            if progress is not None:
                progress(done, total)


def _stretches(levels: Sequence[Numbers], work: NDArray[np.float64], together: bool) -> Iterator[tuple[Numbers, bool]]:
    """Yields each level, and whether it is large; if `together`, yields neighbouring small levels as one."""
    for large, neighbours in groupby(levels, lambda level: float(work[level].sum()) >= SPLIT):
        if together and not large:
            yield np.concatenate([*neighbours]), large
        else:
            yield from ((level, large) for level in neighbours)


def _chunks(numbers: Numbers, work: NDArray[np.float64], threads: int) -> list[Numbers]:
    """Splits states into parts of about equal work, at most CHUNK each: one or more for each thread."""
    ends = np.cumsum(work[numbers])
    parts = threads * max(1, -(-int(ends[-1]) // (CHUNK * threads)))
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, parts) / parts)
    return [part for part in np.split(numbers, cuts) if len(part)]


def _share(pool: ThreadPoolExecutor, step: Step, chunks: list[Numbers]) -> None:
    futures: list[Future[None]] = []
    ended: SimpleQueue[None] = SimpleQueue()  # not `futures.wait`, whose locks an interrupt may leave locked

    def work(chunk: Numbers) -> None:
        try:
            step(chunk)
        finally:
            ended.put(None)

    try:
        for chunk in chunks:
            futures.append(pool.submit(work, chunk))
        for _ in futures:
            ended.get()
    finally:
        for future in futures:
            future.cancel()  # so that, after an interrupt, the pool waits only for chunks that have begun
    for future in futures:
        future.result()
