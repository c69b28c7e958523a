"""The rows of a state-space graph, and expectations over their outcomes.

A row is one possible profile of a state. A profile is one action of each agent, numbered as the sum of action_i * n^i.
Every sum runs in the order of the rows, outcomes and actions, so a result does not depend on how many threads share the
work. The inner loops run over goals, which are independent of one another, so the compiler may vectorise them.

Numba has no float16 on CPUs, so kernels see a float16's bits as uint16. For numbers from 0 to 65504, `wide` and
`narrow` convert them exactly as `numpy.astype` does; they pass other dtypes unchanged, so that one kernel serves all.
"""

import math
from typing import Any, NamedTuple

from numba.core import types
from numba.extending import overload

from ...kernels.jit import bits_of, float_of, inlined

OFFERED, ACHIEVED = 1, 2  # bits of a goal's flags in a state

TIE = 1e-12  # the greatest relative difference between equally good actions

DROPPED = 42  # bits of float64's mantissa that float16 lacks
HALF, EVEN = (1 << (DROPPED - 1)) - 1, 1 << DROPPED  # for rounding to nearest, ties to even
REBIAS = (1023 - 15) << 10  # the difference of the exponents' biases, at float16's exponent
SCALE = 2.0**1008  # the same difference as a factor
LEAST_NORMAL = 2.0**-14
SUBNORMAL = 2.0**28  # its sum with a smaller number has the float16's bits as its lowest bits


class GraphArrays(NamedTuple):
    """A graph as arrays."""

    first: Any  # int64 [states + 1], the first row of each state; a terminal state has no rows
    profile: Any  # integers [rows], ascending in a state
    start: Any  # int64 [rows + 1], the first outcome of each row
    successor: Any  # integers [outcomes]
    probability: Any  # floats [outcomes]
    discount: Any  # float64 [outcomes], or [1] if all are equal
    stride: int  # of discounts: 1, or 0 if all are equal
    profiles: int  # the number of profiles


def wide(value):
    """Converts a stored number to float64."""
    raise NotImplementedError("only kernels call it")


def narrow(values, value):
    """Converts a float64 to the form in which the array `values` stores it."""
    raise NotImplementedError("only kernels call it")


@overload(wide, inline="always")
def _wide(value):
    if isinstance(value, types.Integer):
        return lambda value: float_of((value & 0x7FFF) << DROPPED) * SCALE
    return lambda value: value


@overload(narrow, inline="always")
def _narrow(values, value):
    if isinstance(values.dtype, types.Integer):
        return lambda values, value: half_bits(value)
    return lambda values, value: value


def kept(total, value):
    """Rounds a term or a sum to float16 if `total` is float32, as NumPy does when it adds products of float16."""
    raise NotImplementedError("only kernels call it")


@overload(kept, inline="always")
def _kept(total, value):
    if total.dtype == types.float32:
        return lambda total, value: wide(half_bits(float(value)))
    return lambda total, value: value


@inlined
def half_bits(value):
    if value < LEAST_NORMAL:
        return bits_of(value + SUBNORMAL) & 0x7FF
    bits = bits_of(value)
    return ((bits + HALF + ((bits & EVEN) >> DROPPED)) >> DROPPED) - REBIAS


@inlined
def is_complete(rows, state):
    """Returns whether every profile is possible in the state."""
    return rows.first[state + 1] - rows.first[state] == rows.profiles


@inlined
def row_of(rows, state, profile):
    """Returns a profile's row; -1 if the profile is not possible in the state."""
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
    """Writes to `total` [goals] each goal's expectation.

    A successor that achieves the goal counts as 1, every other one as its discounted value.
    """
    for goal in range(len(total)):
        total[goal] = 0.0
    for outcome in range(rows.start[row], rows.start[row + 1]):
        p, discount = rows.probability[outcome], rows.discount[outcome * rows.stride]
        successor = rows.successor[outcome]
        for goal in range(len(total)):
            achieved = flags[successor, goal] & ACHIEVED
            total[goal] += p * (1.0 if achieved else discount * wide(values[successor, goal]))
    for goal in range(len(total)):
        total[goal] = kept(total, total[goal])


@inlined
def divide(total, mass):
    for i in range(len(total)):
        total[i] /= mass


@inlined
def soften(score, mass, beta, chosen):
    """Writes softmax(beta * score) to `chosen`, 0 where mass is 0; if beta is infinite, the best share 1 equally.

    Sums of the same numbers in another order differ by their rounding, so an infinite beta counts a score as the best
    if the difference is at most TIE times the best score's magnitude. Small scores may differ by far less than TIE.
    """
    best, total = -math.inf, 0.0
    for i in range(len(score)):
        if mass[i] > 0.0:
            best = max(best, score[i])
    tied = best - TIE * abs(best) if beta == math.inf and abs(best) < math.inf else best
    for i in range(len(score)):
        chosen[i] = 0.0
        if mass[i] > 0.0:
            # Infinite beta times a difference of 0 would be NaN.
            chosen[i] = math.exp(beta * (score[i] - best)) if score[i] < tied else 1.0
        total += chosen[i]
    divide(chosen, total)
