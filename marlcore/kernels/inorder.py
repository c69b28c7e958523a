"""Reading transitions, or unrolls of them, in the order in which they were written, each once.

A cursor says for each lane where its reader stands; whatever can be delivered from there on is copied by `take`.
"""

from __future__ import annotations

import numpy as np

from .gather import take
from .jit import int64_at, jit, uint32_at
from .rows import (
    BOUNDARY,
    NEVER,
    ORDINAL,
    PENDING,
    SAMPLEABLE,
    age_of,
    check,
    find_seams,
    flags_of,
    place_of,
    record_of,
)

__all__ = ["read"]

# Of `cursors`: the one that the batch moves, one moved as far as nothing that can be delivered is passed, and scratch
NEXT, SETTLED, PROBE = range(3)
# Rows of a cursor: the next ticket, and the transitions below it; those of them that were overwritten before they
# were read, and those that nothing can be made of
POSITION, PASSED, DROPPED, SKIPPED = range(4)
# Rows of `tallies`: rows at the beginning of each window to stay away from; transitions or unrolls that are ready;
# how many of them the batch takes; the lowest ticket that was looked at
MARGIN, READY, SHARE, LEAST = range(4)

NOT_LOOKED_AT = 1 << 62  # as the lowest ticket: it is never overwritten


@jit
def _copy(to, source, lane):
    for row in range(to.shape[0]):
        to[row, lane] = source[row, lane]


@jit
def _enter(p, lane, margin, cursor):
    """Leaves behind what was overwritten, and `margin` rows more; ordinals say how many transitions that were."""
    lo, hi = int64_at(p.lo)[lane], int64_at(p.hi)[lane]
    oldest = min(lo + margin, hi - 1)
    if oldest < lo or oldest <= cursor[POSITION, lane]:
        return
    ordinal = np.int64(uint32_at(record_of(p, lane, oldest))[ORDINAL])
    missed = (ordinal - cursor[PASSED, lane]) & 0xFFFFFFFF
    cursor[DROPPED, lane] += missed
    cursor[PASSED, lane] += missed
    cursor[POSITION, lane] = oldest


@jit
def _is_cut(p, lane, ticket):
    """Whether frames of a row's stack, or the state that is stored for it, were overwritten."""
    age, lo = age_of(place_of(p, lane, ticket)), int64_at(p.lo)[lane]
    return ticket - min(age, p.stack - 1) < lo or (age > 0 and ticket - ticket % p.state_every < lo)


@jit
def _settle(p, lane, cursor):
    """Moves past what no batch can hold: (SAMPLEABLE, the rows of what can be delivered) or (PENDING, 0)."""
    # Below a window lies memory of another lane, or none: writers may lap a lane while its window is read, which is
    # empty then and begins behind the cursor. Damaged counters look the same, but stay so.
    lo, hi = int64_at(p.lo)[lane], int64_at(p.hi)[lane]
    while lo <= cursor[POSITION, lane] < hi:
        ticket = cursor[POSITION, lane]
        if not flags_of(place_of(p, lane, ticket)) & BOUNDARY:
            found, _, _, rows = check(p, lane, ticket)
            if found != NEVER:
                return found, rows
            cursor[DROPPED if _is_cut(p, lane, ticket) else SKIPPED, lane] += 1
            cursor[PASSED, lane] += 1
        cursor[POSITION, lane] += 1
    return PENDING, 0


@jit
def _look(p, lane, cursors, tallies):
    """How much of a lane can be delivered, counted up to a batch; and what rows yet to be written may add to it."""
    settled, probe, hi = cursors[SETTLED], cursors[PROBE], int64_at(p.hi)[lane]
    _copy(settled, cursors[NEXT], lane)
    _enter(p, lane, tallies[MARGIN, lane], settled)
    behind = hi <= max(settled[POSITION, lane], int64_at(p.lo)[lane])
    tallies[LEAST, lane] = NOT_LOOKED_AT if behind else settled[POSITION, lane]
    found, rows = _settle(p, lane, settled)
    _copy(probe, settled, lane)
    ready = 0
    while found == SAMPLEABLE and ready < p.batch:
        ready += 1
        probe[POSITION, lane] += rows
        found, rows = _settle(p, lane, probe)
    tallies[READY, lane] = ready
    return ready, (hi - probe[POSITION, lane] + p.length - 1) // p.length


@jit
def _share(ready, first, total, share):
    """Gives each lane about as much of `total` as every other, and none more than it has ready."""
    lanes, left = len(ready), total
    for lane in range(lanes):
        share[lane] = 0
    while left > 0:
        able = 0
        for lane in range(lanes):
            able += share[lane] < ready[lane]
        each = max(1, left // able)
        for i in range(lanes):
            lane = (first + i) % lanes
            more = min(each, ready[lane] - share[lane], left)
            share[lane] += more
            left -= more


@jit
def read(plan, columns, out, first, cursors, tallies):
    """Copies the next batch: of each lane in turn one run of what follows the cursor, none when there is too little.

    Args:
        plan, columns: see plan.py; the windows' seams are found here.
        out: the batch's address.
        first: the lane that is given one more where the lanes' shares cannot be equal.
        cursors: int64 [3, 4, lanes], see above; the first is moved behind the batch.
        tallies: int64 [4, lanes], see above; all but the margins are made here.

    Returns: (whether a batch was copied; transitions or unrolls that are ready, counted up to a batch a lane; those
    that rows yet to be written may add without being one more row each).
    """
    p, cursor = plan[0], cursors[NEXT]
    find_seams(p)
    total, pending = 0, 0
    for lane in range(p.lanes):
        ready, more = _look(p, lane, cursors, tallies)
        total += ready
        pending += more
    if total < p.batch:
        return False, total, pending
    _share(tallies[READY], first, p.batch, tallies[SHARE])
    slot = 0
    for lane in range(p.lanes):
        _copy(cursor, cursors[SETTLED], lane)
        for _ in range(tallies[SHARE, lane]):
            ticket = cursor[POSITION, lane]
            if ticket >= int64_at(p.hi)[lane]:
                return False, total, pending  # it was overwritten since: validation will say so
            taken, lowest, rows = take(p, columns, out, lane, ticket, slot)
            if not taken:
                return False, total, pending
            tallies[LEAST, lane] = min(tallies[LEAST, lane], lowest)
            cursor[POSITION, lane] += rows
            cursor[PASSED, lane] += rows
            slot += 1
            if slot < p.batch:
                _settle(p, lane, cursor)
    return True, total, pending
