"""Drawing transitions or sequences in proportion to their priorities, which lie in a tree of sums.

The leaf of a ticket is its row, counted over all lanes. Its mass is the priority to the power of alpha, or 0 where
nothing can be drawn. `reach` says for each lane which tickets have leaves.
"""

from __future__ import annotations

import math

import numpy as np

from .gather import take
from .jit import inlined, jit, prefetch
from .random import unit
from .rows import (
    CAPACITY,
    HI,
    LANE,
    LANES,
    LO,
    NEVER,
    PENDING,
    SAMPLEABLE,
    SEAM,
    STACK,
    STATE_EVERY,
    TICKET,
    WEIGHT,
    find_seams,
    prefetch_row,
    resolve,
    row_of,
)
from .sumtree import find, repair, repair_range

__all__ = ["catch_up", "draw", "first_bad", "update", "weigh"]

# Rows of `reach`: tickets of [FLOOR, CAUGHT) have their leaves
FLOOR, CAUGHT = range(2)
# Values of `marks`, one for each leaf
ABSENT, PRESENT, DRAWN = range(3)
# Entries of `numbers`; LIMIT is the highest priority of which every leaf could have the mass
ALPHA, EPSILON, HIGHEST, LIMIT = range(4)
# Columns of `initial`, which has a row where the lanes hold the actors' priorities
BASE, STRIDE = range(2)


@inlined
def _repair_tickets(tree, offsets, capacity, lane, first, last):
    """Makes the sums above the leaves of the tickets [first, last) anew; at most `capacity` of them."""
    if first >= last:
        return
    base, low = lane * capacity, first % capacity
    high = low + last - first
    repair_range(tree, offsets, 0, base + low, base + min(high, capacity))
    if high > capacity:
        repair_range(tree, offsets, 0, base, base + high - capacity)


@inlined
def _evict(table, windows, lane, reach, tree, offsets, marks):
    """Takes the mass from tickets that the window has left behind."""
    capacity = table[CAPACITY]
    first, last = reach[FLOOR, lane], min(windows[LO, lane], reach[CAUGHT, lane])
    for ticket in range(first, last):
        leaf = lane * capacity + ticket % capacity
        tree[leaf] = 0.0
        marks[leaf] = ABSENT
    _repair_tickets(tree, offsets, capacity, lane, first, last)
    reach[FLOOR, lane] = max(first, windows[LO, lane])
    reach[CAUGHT, lane] = max(reach[CAUGHT, lane], reach[FLOOR, lane])


@inlined
def _initial(floats, table, windows, lane, ticket, initial, numbers, bad):
    """The priority of a new ticket: its actor's, or the highest so far where that is NaN."""
    if initial.shape[0] == 0:
        return numbers[HIGHEST]
    row = row_of(table, windows, lane, ticket)
    given = np.float64(floats[(initial[0, BASE] + row * initial[0, STRIDE]) >> 2])
    if math.isnan(given):
        return numbers[HIGHEST]
    if not 0.0 <= given <= numbers[LIMIT]:
        bad[0], bad[1] = lane, ticket
        return numbers[HIGHEST]
    return given + numbers[EPSILON]


@jit
def catch_up(
    body, table, gamma, windows, reach, tree, offsets, marks, numbers, initial, bad, row, chosen, successors, out
):  # fmt: skip
    """Gives mass to what was written since the last call, and takes it from what was overwritten.

    A ticket is decided in its turn, once rows behind it can change nothing more.

    Args:
        body, table, gamma, windows, chosen, successors, out: see gather.py; the seams are found here.
        reach: int64 [2, lanes], see above.
        tree, offsets: float64 and int64, see sumtree.py.
        marks: uint8, one for each leaf.
        numbers: float64 [4]: alpha, epsilon, the highest priority so far, and the highest that may come.
        initial: int64 [1, 2], offset and stride of the field with the actors' priorities, or [0, 2].
        bad: int64 [2], out: (lane, ticket) of an actor's priority that is negative or too high.
        row: an output row that is yet to be filled, for scratch.
    """
    words, floats, floats_out = body.view(np.uint32), body.view(np.float32), out.view(np.float32)
    capacity, alpha = table[CAPACITY], numbers[ALPHA]
    find_seams(table, windows)
    for lane in range(table[LANES]):
        lo, hi = windows[LO, lane], windows[HI, lane]
        if lo > reach[FLOOR, lane]:
            _evict(table, windows, lane, reach, tree, offsets, marks)
            # Of the oldest rows the frames of the stack, or the state, may be gone.
            oldest = min(lo + table[STACK] + table[STATE_EVERY], reach[CAUGHT, lane])
            for ticket in range(lo, oldest):
                found = resolve(
                    words, floats, table, gamma, windows, lane, ticket, 0, row, chosen, out, floats_out, successors
                )  # fmt: skip
                if found == NEVER:
                    leaf = lane * capacity + ticket % capacity
                    tree[leaf] = 0.0
                    marks[leaf] = ABSENT
            _repair_tickets(tree, offsets, capacity, lane, lo, oldest)
        first = ticket = reach[CAUGHT, lane]
        while ticket < hi:
            found = resolve(
                words, floats, table, gamma, windows, lane, ticket, 0, row, chosen, out, floats_out, successors
            )  # fmt: skip
            if found == PENDING:
                break
            leaf = lane * capacity + ticket % capacity
            if found == SAMPLEABLE:
                priority = _initial(floats, table, windows, lane, ticket, initial, numbers, bad)
                numbers[HIGHEST] = max(numbers[HIGHEST], priority)
                tree[leaf] = priority**alpha
                marks[leaf] = PRESENT
            else:
                tree[leaf] = 0.0
                marks[leaf] = ABSENT
            ticket += 1
        reach[CAUGHT, lane] = ticket
        _repair_tickets(tree, offsets, capacity, lane, first, ticket)


@inlined
def _ticket_of(table, windows, leaf):
    """The (lane, ticket) of a leaf in the lanes' windows."""
    lane = leaf // table[CAPACITY]
    ticket = windows[SEAM, lane] - table[CAPACITY] + leaf - lane * table[CAPACITY]
    if ticket < windows[LO, lane]:
        ticket += table[CAPACITY]
    return lane, ticket


@jit
def draw(
    body, table, gamma, windows, state, rows, tree, offsets, marks, points, leaves,
    frames, fields, states, chosen, successors, out,
):  # fmt: skip
    """Draws for the output rows `rows` after `catch_up`: one in each of as many equal parts of the total mass.

    Args:
        points: float64 [2, batch]: scratch, and by output row the mass that was drawn.
        leaves: int64 [batch], scratch.
        others: see `catch_up` and gather.py.

    Returns: slots filled; fewer than asked for when rows were overwritten meanwhile, 0 without any mass.
    """
    words = body.view(np.uint32)
    total, count, filled = tree[len(tree) - 1], len(rows), 0
    if not total > 0.0:
        return 0
    for i in range(count):
        points[0, i] = (i + unit(state)) * (total / count)
    find(tree, offsets, points[0], leaves, count)
    for i in range(count):
        lane, ticket = _ticket_of(table, windows, leaves[i])
        chosen[LANE, i], chosen[TICKET, i] = lane, ticket
        prefetch_row(words, table, windows, lane, ticket)
        prefetch(marks.ctypes.data + leaves[i])
    for i in range(count):
        if take(
            body, table, gamma, windows, chosen[LANE, i], chosen[TICKET, i], filled, rows[filled],
            frames, fields, states, chosen, successors, out,
        ):  # fmt: skip
            points[1, rows[filled]] = tree[leaves[i]]
            marks[leaves[i]] = DRAWN
            filled += 1
    return filled


@jit
def weigh(table, rows, masses, beta, out):
    """Writes the importance weights of the output rows `rows`, drawn with `masses`, float64 by output row.

    A weight is (smallest mass of the rows / mass)^beta: Schaul et al. 2016 (arXiv:1511.05952), section 3.4, where
    (N P)^-beta is divided by the largest weight, so that N and the total cancel out.
    """
    floats_out = out.view(np.float32)
    smallest = math.inf
    for row in rows:
        smallest = min(smallest, masses[row])
    for row in rows:
        floats_out[(table[WEIGHT] >> 2) + row] = (smallest / masses[row]) ** beta


@jit
def first_bad(priority, limit):
    """The first of the priorities that is negative, above the limit or NaN; -1 when none is."""
    for i in range(len(priority)):
        if not 0.0 <= priority[i] <= limit:
            return i
    return -1


@jit
def update(table, windows, reach, tree, offsets, marks, numbers, index, priority, leaves):
    """Gives the transitions or sequences `index`, int64 [n], new priorities, float64 [n], finite and at least 0.

    Returns: how many were ignored, since they were overwritten or never drawn.
    """
    find_seams(table, windows)
    lanes, kept = table[LANES], 0
    for i in range(len(index)):
        ticket = index[i] // lanes
        lane = index[i] - ticket * lanes
        if index[i] < 0 or ticket < max(reach[FLOOR, lane], windows[LO, lane]):
            continue
        if ticket >= min(reach[CAUGHT, lane], windows[HI, lane]):  # damaged counters may have gone back
            continue
        leaf = row_of(table, windows, lane, ticket)
        if marks[leaf] != DRAWN:
            continue
        value = priority[i] + numbers[EPSILON]
        numbers[HIGHEST] = max(numbers[HIGHEST], value)
        tree[leaf] = value ** numbers[ALPHA]
        leaves[kept] = leaf
        kept += 1
    repair(tree, offsets, leaves, kept)
    return len(index) - kept
