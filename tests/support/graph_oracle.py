"""State-space graphs in plain Python, straight from the definitions: the oracle of tests and benchmarks.

It shares no code with the package.
"""

from collections import Counter
from heapq import heappop, heappush
from itertools import product
from typing import Any, NamedTuple


class Lists(NamedTuple):
    """The lists that `Graph.to_lists` returns."""

    states: list[Any]
    index: dict[Any, int]
    successors: list[list[int]]
    transitions: list[list[tuple[tuple[int, ...], list[float], list[int]]]]


def graph_lists(model: Any) -> Lists:
    """Returns the graph of a world model: lists states breadth first, and orders them by Kahn's algorithm."""
    n, agents = model.action_space.n, len(model.agents)
    profiles = [profile[::-1] for profile in product(range(n), repeat=agents)]
    model.reset()
    reached = [model.get_state()]
    number = {reached[0]: 0}
    transitions: list[list[Any]] = []
    for state in reached:  # which grows meanwhile
        transitions.append([])
        for profile in profiles:
            outcomes = model.transition_probabilities(state, profile)
            if outcomes is None:
                continue
            for _, successor in outcomes:
                if successor not in number:
                    number[successor] = len(reached)
                    reached.append(successor)
            transitions[-1].append((profile, [p for p, _ in outcomes], [number[s] for _, s in outcomes]))
    after = [{s for _, _, successors in of_state for s in successors} for of_state in transitions]
    try:
        order = _ordered(after, reached)
    except TypeError:
        order = _ordered(after, range(len(reached)))
    place = {old: new for new, old in enumerate(order)}
    moved = [
        [(profile, p, [place[s] for s in successors]) for profile, p, successors in transitions[old]] for old in order
    ]
    states = [reached[old] for old in order]
    successors = [sorted(place[s] for s in after[old]) for old in order]
    return Lists(states, {state: i for i, state in enumerate(states)}, successors, moved)


def _ordered(after: list[set[int]], keys: Any) -> list[int]:
    waiting = Counter(successor for successors in after for successor in successors)
    heap: list[Any] = []
    for i in range(len(after)):
        if not waiting[i]:
            heappush(heap, (keys[i], i))
    order = []
    while heap:
        _, i = heappop(heap)
        order.append(i)
        for successor in sorted(after[i]):
            waiting[successor] -= 1
            if not waiting[successor]:
                heappush(heap, (keys[successor], successor))
    if len(order) < len(after):
        raise ValueError("cycle")
    return order


def longest_paths(successors: list[list[int]]) -> list[int]:
    """Returns, by state, the number of transitions of the longest path to an end."""
    level = [0] * len(successors)
    for i in reversed(range(len(successors))):
        level[i] = max((1 + level[s] for s in successors[i]), default=0)
    return level
