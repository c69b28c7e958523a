"""The rows of a state-space graph, and expectations over their outcomes.

A row is one possible profile of a state; a profile is one action of each agent, as the number sum of action_i * n^i.
Every sum runs in the order of the rows, outcomes and actions, so a result does not depend on how many threads share the
work. The inner loops run over goals, which are independent of one another, so the compiler may vectorise them.
"""

import math
from typing import Any, NamedTuple

from ...kernels.jit import inlined
from .half import wide

OFFERED, ACHIEVED = 1, 2  # bits of a goal's flags in a state


class Rows(NamedTuple):
    """A graph in arrays."""

    first: Any  # int64 [states + 1], the first row of each state; a terminal state has no rows
    profile: Any  # integers [rows], ascending in a state
    start: Any  # int64 [rows + 1], the first outcome of each row
    successor: Any  # integers [outcomes]
    probability: Any  # floats [outcomes]
    discount: Any  # float64 [outcomes], or [1] if all are equal
    stride: int  # of discounts: 1, or 0 if all are equal
    profiles: int  # how many there are


@inlined
def is_complete(rows, state):
    """Whether every profile is possible in the state."""
    return rows.first[state + 1] - rows.first[state] == rows.profiles


@inlined
def row_of(rows, state, profile):
    """The row of a profile; -1 if the profile is not possible in the state."""
    low, end = rows.first[state], rows.first[state + 1]
    if end - low == rows.profiles:
        return low + profile
    high = end
    while low < high:
        middle = (low + high) // 2
        if rows.profile[middle] < profile:
            low = middle + 1
        else:
            high = middle
    return low if low < end and rows.profile[low] == profile else -1


@inlined
def expect(rows, row, flags, values, total):
    """Sets total[goal] to the expectation of 1 where the successor achieves the goal, else of its discounted value."""
    for goal in range(len(total)):
        total[goal] = 0.0
    for outcome in range(rows.start[row], rows.start[row + 1]):
        p, discount = rows.probability[outcome], rows.discount[outcome * rows.stride]
        successor = rows.successor[outcome]
        for goal in range(len(total)):
            achieved = flags[successor, goal] & ACHIEVED
            total[goal] += p * (1.0 if achieved else discount * wide(values[successor, goal]))


@inlined
def divide(total, mass):
    for i in range(len(total)):
        total[i] /= mass


@inlined
def soften(score, mass, beta, chosen):
    """Writes softmax(beta * score) to `chosen`; with an infinite beta the best choices are equally likely.

    All arrays are float64 [choices]; choices without mass get 0.
    """
    best, total = -math.inf, 0.0
    for i in range(len(score)):
        if mass[i] > 0.0:
            best = max(best, score[i])
    for i in range(len(score)):
        chosen[i] = 0.0
        if mass[i] > 0.0:
            # An infinite beta times no difference would not be a number.
            chosen[i] = math.exp(beta * (score[i] - best)) if score[i] < best else 1.0
        total += chosen[i]
    divide(chosen, total)
