"""Orders a graph's states so that every successor comes later, computes levels, and writes the arrays in that order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_whole
from .expansion import Expansion

BLOCK = 1 << 20  # outcomes to sort or move at once, to save memory
SHOWN = 8  # the most states of a cycle in a message


@dataclass(frozen=True)
class Edges:
    """Each state's distinct successors, ascending: target[start[i]:start[i + 1]] for state i."""

    start: NDArray[np.int64]  # [states + 1]
    target: NDArray[np.int32]  # [edges]

    @classmethod
    def of(cls, first: NDArray[np.int64], successor: NDArray[np.int32]) -> Edges:
        """Makes the edges from outcomes; state i has the outcomes first[i] to first[i + 1] - 1."""
        states = len(first) - 1
        cuts = np.searchsorted(first, np.arange(0, first[-1], BLOCK))
        bounds = np.unique([0, *cuts, states])
        counts, targets = [np.zeros(1, np.int64)], [np.zeros(0, np.int32)]
        for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            source = np.repeat(np.arange(high - low), np.diff(first[low : high + 1]))
            pairs = np.unique(source * states + successor[first[low] : first[high]])
            counts.append(np.bincount(pairs // states, minlength=high - low))
            targets.append((pairs % states).astype(np.int32))
        return cls(np.cumsum(np.concatenate(counts)), np.concatenate(targets))

    def __len__(self) -> int:
        return len(self.start) - 1

    @property
    def source(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self)), np.diff(self.start))

    def of_each(self, states: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
        start, target = self.start.tolist(), self.target.data
        for state in states:
            yield state, target[start[state] : start[state + 1]].tolist()


def topological_order(states: Sequence[Any], edges: Edges) -> list[int]:
    """Orders the states' numbers so that every successor comes later. Raises ValueError if there is a cycle.

    A state is ready when all its predecessors are in the order. The next state is always the smallest ready one or, if
    some states cannot be compared, the ready one with the smallest number.
    """
    try:
        order = _smallest_first(states, edges)
    except TypeError:  # two states cannot be compared
        order = _smallest_first(range(len(states)), edges)
    if len(order) < len(states):
        cycle = [brief(states[number]) for number in _cycle(edges, order)]
        shown = cycle[:SHOWN] + [f"... ({len(cycle) - SHOWN} more)"] * (len(cycle) > SHOWN) + cycle[:1]
        raise ValueError(f"transitions: expected no cycle, got {' -> '.join(shown)}")
    return order


def _smallest_first(keys: Sequence[Any], edges: Edges) -> list[int]:
    """Orders states by Kahn's algorithm with a heap; leaves out states on cycles or reachable from cycles."""
    waiting = np.bincount(edges.target, minlength=len(edges)).tolist()  # counts of predecessors not in the order yet
    start, target = edges.start.tolist(), edges.target.data
    ready = [(keys[number], number) for number, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)[1]
        order.append(number)
        for after in target[start[number] : start[number + 1]]:
            waiting[after] -= 1
            if not waiting[after]:
                heappush(ready, (keys[after], after))
    return order


def _cycle(edges: Edges, order: list[int]) -> list[int]:
    """Returns the numbers of a cycle's states; `order` lists the states that `_smallest_first` could order."""
    left = np.ones(len(edges), bool)
    left[order] = False
    source = edges.source
    inside = left[source] & left[edges.target]
    predecessor = dict(zip(edges.target[inside].tolist(), source[inside].tolist(), strict=True))
    path: dict[int, None] = {}
    number = min(predecessor)
    while number not in path:  # each state that is left has a predecessor that is left
        path[number] = None
        number = predecessor[number]
    cycle = [*path][[*path].index(number) :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]


def longest_paths(edges: Edges, order: list[int]) -> NDArray[np.int64]:
    """Returns the length of each state's longest path to an end, in transitions, int64 [states]."""
    level = [0] * len(edges)
    for number, after in edges.of_each(order[::-1]):
        if after:
            level[number] = 1 + max([level[successor] for successor in after])
    return np.array(level, np.int64)


def given_levels(states: Sequence[Any], edges: Edges, level_fct: Callable[[Any], int]) -> NDArray[np.int64]:
    """Returns each state's level by `level_fct`, int64 [states].

    Raises ValueError unless every edge lowers the level, or every edge raises it.
    """
    levels = [level_fct(state) for state in states]
    for state, value in zip(states, levels, strict=True):
        check_whole(f"level_fct({brief(state)})", value, -(2**62), 2**62)
    level = np.array(levels, np.int64)
    change = level[edges.target] - level[edges.source]
    wrong = change >= 0 if len(change) and change[0] < 0 else change <= 0
    for edge in np.flatnonzero(wrong):
        source, target = edges.source[edge], edges.target[edge]
        raise ValueError(
            f"level_fct: expected every transition to lower the level, or all to raise it, got level {level[source]} "
            f"in state {brief(states[source])} and {level[target]} in its successor {brief(states[target])}"
        )
    return level


def write_in_order(arrays: Mapping[str, NDArray[Any]], expansion: Expansion, order: NDArray[np.int64]) -> None:
    """Writes an expansion's rows and outcomes into a graph's arrays.

    `order`, int64 [states], lists the states' numbers in the expansion, in the graph's order.
    """
    rows_of, first_outcome = np.asarray(expansion.rows), expansion.first
    first_row = np.cumsum(rows_of) - rows_of
    outcomes_of = np.diff(first_outcome)
    lengths, profile = np.asarray(expansion.outcomes), np.asarray(expansion.profile)
    place = np.empty(len(order), np.int32)
    place[order] = np.arange(len(order))
    np.cumsum(rows_of[order], out=arrays["row_start"][1:])
    ends = np.cumsum(outcomes_of[order])
    row = outcome = low = 0
    while low < len(order):
        high = max(low + 1, int(np.searchsorted(ends, outcome + BLOCK, "right")))
        states = order[low:high]
        rows = _ranges(first_row[states], rows_of[states])
        outcomes = _ranges(first_outcome[states], outcomes_of[states])
        arrays["profile"][row : row + len(rows)] = profile[rows]
        arrays["start"][row + 1 : row + len(rows) + 1] = outcome + np.cumsum(lengths[rows])
        into = slice(outcome, outcome + len(outcomes))
        arrays["successor"][into] = place[np.asarray(expansion.successor)[outcomes]]
        if "probability" in arrays:
            arrays["probability"][into] = np.asarray(expansion.probability)[outcomes]
        row, outcome, low = row + len(rows), outcome + len(outcomes), high


def _ranges(first: NDArray[np.int64], counts: NDArray[Any]) -> NDArray[np.int64]:
    """Concatenates the ranges first[i] to first[i] + counts[i] - 1."""
    shift = first - (np.cumsum(counts) - counts)
    numbers: NDArray[np.int64] = np.repeat(shift, counts)
    numbers += np.arange(len(numbers))
    return numbers
