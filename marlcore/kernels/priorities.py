"""Draws transitions or sequences in proportion to their priorities, which lie in a sum tree.

A ticket's leaf is its row, counted over all lanes. The leaf's mass is the priority to the power of alpha, or 0 if the
ticket cannot be drawn. The tickets [floor, caught) of each lane have leaves.
"""

import math

import numpy as np

from .gather import take_chosen
from .jit import (
    float32_at,
    float64_array,
    float64_at,
    inlined,
    int64_array,
    int64_at,
    jit,
    prefetch,
    uint8_at,
    uint64_at,
)
from .plan import record
from .powers import raise_all
from .random import unit
from .rows import NEVER, NO_ROWS, PENDING, SAMPLEABLE, check, find_seams, mark_new, row_of
from .sumtree import find, repair, repair_range

# Values of a leaf's mark
ABSENT, PRESENT, DRAWN = range(3)

# One sampler's priorities, an array of one record; its maker keeps the memory at its addresses alive
PRIORITIES = record(
    """
    alpha epsilon   see replay.Prioritized
    highest         the highest priority so far
    limit           the highest priority for which the sum of all masses is finite
    tree nodes      address and length of float64; see sumtree.py
    offsets levels  address of int64 [levels + 1], and the number of levels; see sumtree.py
    marks           address of uint8, one for each leaf
    floor caught    addresses of int64 [lanes]
    initial initial_stride  address of the actors' priority in row 0, float32, and bytes from row to row; 0 without one
    bad_lane bad_ticket     place of an actor's priority that is negative or too high; -1 without one
    points leaves   addresses of scratch: float64 and int64, one for each slot or update
    masses          address of float64 [batch]: the mass of each output row
    """,
    floats="alpha epsilon highest limit",
)


@inlined
def _repair_tickets(tree, offsets, capacity, lane, first, last):
    if first >= last:
        return
    base, low = lane * capacity, first % capacity
    high = low + last - first
    repair_range(tree, offsets, 0, base + low, base + min(high, capacity))
    if high > capacity:
        repair_range(tree, offsets, 0, base, base + high - capacity)


@inlined
def _drop(q, leaf):
    float64_at(q.tree)[leaf] = 0.0
    uint8_at(q.marks)[leaf] = ABSENT


@inlined
def _evict(p, q, lane):
    """Removes the mass of tickets that lie below the window or need rows below it."""
    tree, offsets = float64_array(q.tree, q.nodes), int64_array(q.offsets, q.levels + 1)
    lo, floor, caught = int64_at(p.lo)[lane], int64_at(q.floor), int64_at(q.caught)
    first, last = floor[lane], min(lo, caught[lane])
    for ticket in range(first, last):
        _drop(q, lane * p.capacity + ticket % p.capacity)
    _repair_tickets(tree, offsets, p.capacity, lane, first, last)
    floor[lane] = max(first, lo)
    caught[lane] = max(caught[lane], floor[lane])
    # The oldest rows may have lost frames of their stack, or their state.
    oldest = min(lo + p.stack + p.state_every, caught[lane])
    for ticket in range(lo, oldest):
        if check(p, lane, ticket)[0] == NEVER:
            _drop(q, row_of(p, lane, ticket))
    _repair_tickets(tree, offsets, p.capacity, lane, lo, oldest)


@inlined
def _initial(p, q, lane, ticket):
    if q.initial == 0:
        return q.highest
    priority = np.float64(float32_at(q.initial + row_of(p, lane, ticket) * q.initial_stride)[0])
    if math.isnan(priority):
        return q.highest
    if not 0.0 <= priority <= q.limit:
        q.bad_lane, q.bad_ticket = lane, ticket
        return q.highest
    return priority + q.epsilon


@inlined
def _take_in(p, q, lane):
    """Gives mass to a lane's new tickets in order, up to the first ticket that needs rows not yet written."""
    tree, offsets = float64_array(q.tree, q.nodes), int64_array(q.offsets, q.levels + 1)
    first = ticket = int64_at(q.caught)[lane]
    last, mass = -1.0, 0.0  # without actors' priorities, all new tickets have the same mass
    while ticket < int64_at(p.hi)[lane]:
        verdict, leaf = check(p, lane, ticket)[0], row_of(p, lane, ticket)
        if verdict == PENDING:
            break
        if verdict == SAMPLEABLE:
            priority = _initial(p, q, lane, ticket)
            if priority != last:
                last, mass = priority, priority**q.alpha
                q.highest = max(q.highest, priority)
            tree[leaf] = mass
            uint8_at(q.marks)[leaf] = PRESENT
        else:
            _drop(q, leaf)
        ticket += 1
    int64_at(q.caught)[lane] = ticket
    _repair_tickets(tree, offsets, p.capacity, lane, first, ticket)


@jit
def catch_up(plan, priorities):
    """Gives mass to new tickets, removes the mass of overwritten ones, and sets the windows' seams."""
    p, q = plan[0], priorities[0]
    find_seams(p)
    for lane in range(p.lanes):
        if int64_at(p.lo)[lane] > int64_at(q.floor)[lane]:
            _evict(p, q, lane)
        _take_in(p, q, lane)


@inlined
def _ticket_of(p, leaf):
    lane = leaf // p.capacity
    ticket = int64_at(p.seam)[lane] - p.capacity + leaf - lane * p.capacity
    if ticket < int64_at(p.lo)[lane]:
        ticket += p.capacity
    return lane, ticket


@inlined
def _choose(p, q, first, count):
    """Divides the mass into equal parts, and chooses a ticket from each for slots [first, count); returns `count`.

    If no row may be drawn twice, it draws each point from the whole mass, drops slots whose rows were chosen before,
    and returns the end of the remaining slots.
    """
    tree, offsets = float64_array(q.tree, q.nodes), int64_array(q.offsets, q.levels + 1)
    generator, lanes, tickets = uint64_at(p.generator), int64_at(p.lane), int64_at(p.ticket)
    total, left = tree[q.nodes - 1], count - first
    points, leaves = float64_array(q.points, left), int64_array(q.leaves, left)
    if p.mark:
        for i in range(left):
            points[i] = unit(generator) * total
            find(tree, offsets, float64_array(q.points + 8 * i, 1), int64_array(q.leaves + 8 * i, 1), 1)
    else:
        part = total / max(1, left)
        for i in range(left):
            points[i] = (i + unit(generator)) * part
        find(tree, offsets, points, leaves, left)
    for i in range(left):
        lane, ticket = _ticket_of(p, leaves[i])
        lanes[first + i], tickets[first + i] = lane, ticket
        prefetch(q.marks + leaves[i])
    return mark_new(p, first, count) if p.mark else count


@jit
def draw(plan, columns, out, rows, priorities):
    """Draws tickets for the output rows `rows`: one from each of len(rows) equal parts of the mass.

    If no row may be drawn twice, tickets are drawn from the whole mass, and redrawn until new. Call `catch_up` first.
    Returns: the number of slots filled: fewer than len(rows) if writers overwrote drawn rows or few new rows are left,
    0 if there is no mass.
    """
    p, q = plan[0], priorities[0]
    tree, lanes, tickets = float64_array(q.tree, q.nodes), int64_at(p.lane), int64_at(p.ticket)
    marks, count, filled = uint8_at(q.marks), len(rows), NO_ROWS
    if not tree[q.nodes - 1] > 0.0:
        return 0
    patience = 64 * count + 1024 if p.mark else 1
    while filled < count and patience > 0:
        filled = take_chosen(p, columns, out, rows, filled, _choose(p, q, filled, count))
        patience -= max(1, count - filled)
    for i in range(filled):
        leaf = row_of(p, lanes[i], tickets[i])
        float64_at(q.masses)[rows[i]] = tree[leaf]
        marks[leaf] = DRAWN
    return filled


@jit
def weigh(plan, out, rows, priorities, beta):
    """Writes the importance weights of the drawn output rows `rows`.

    A weight is (smallest mass of the rows / mass)^beta: Schaul et al. 2016 (arXiv:1511.05952), section 3.4, where
    (N P)^-beta is divided by the largest weight, so that N and the total mass cancel out.
    """
    p, q = plan[0], priorities[0]
    weights, masses = float32_at(out + p.weight), float64_at(q.masses)
    smallest = math.inf
    for row in rows:
        smallest = min(smallest, masses[row])
    points = float64_array(q.points, len(rows))
    for i in range(len(rows)):
        points[i] = smallest / masses[rows[i]]
    raise_all(points, beta, len(rows))
    for i in range(len(rows)):
        weights[rows[i]] = points[i]


@jit
def first_bad(priority, limit):
    """Returns the index of the first priority that is negative, above the limit or NaN; -1 if there is none."""
    for i in range(len(priority)):
        if not 0.0 <= priority[i] <= limit:
            return i
    return -1


@jit
def update(plan, priorities, index, priority):
    """Sets the priorities, float64 [n], finite and at least 0, of the transitions or sequences `index`, int64 [n].

    Returns: how many priorities were ignored because their rows were overwritten or never drawn.
    """
    p, q = plan[0], priorities[0]
    tree, offsets = float64_array(q.tree, q.nodes), int64_array(q.offsets, q.levels + 1)
    floor, caught, lo, hi = int64_at(q.floor), int64_at(q.caught), int64_at(p.lo), int64_at(p.hi)
    leaves, points, kept = int64_array(q.leaves, len(index)), float64_array(q.points, len(index)), NO_ROWS
    find_seams(p)
    for i in range(len(index)):
        ticket = index[i] // p.lanes
        lane = index[i] - ticket * p.lanes
        if index[i] < 0 or ticket < max(floor[lane], lo[lane]):
            continue
        if ticket >= min(caught[lane], hi[lane]):  # damaged counters may have gone back
            continue
        leaf = row_of(p, lane, ticket)
        if uint8_at(q.marks)[leaf] != DRAWN:
            continue
        points[kept], leaves[kept] = priority[i] + q.epsilon, leaf
        q.highest = max(q.highest, points[kept])
        kept += 1
    raise_all(points, q.alpha, kept)
    for i in range(kept):
        tree[leaves[i]] = points[i]
    repair(tree, offsets, leaves, kept)
    return len(index) - kept
