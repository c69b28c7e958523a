"""Reads transitions, or unrolls of transitions, in the order of writing, each once.

A cursor holds the reader's position in each lane; `read` copies the deliverable transitions after it.
"""

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

# Items of `cursors`: the cursor after the batch, a cursor moved only past rows that no batch can hold, and scratch
NEXT, SETTLED, PROBE = range(3)
# Rows of a cursor: the next ticket; the number of transitions below it; how many of these were overwritten before they
# were read; how many of them no batch can hold
POSITION, PASSED, DROPPED, SKIPPED = range(4)
CURSOR_ROWS = 4
# Rows of `tallies`: rows to avoid at the start of each window; transitions or unrolls that are ready; how many of them
# the batch takes; the lowest ticket that the kernel looked at; whether all are taken although the batch stays unfilled
MARGIN, READY, SHARE, LEAST, CROWDED = range(5)

NOT_LOOKED_AT = 1 << 62  # a lowest ticket that is never overwritten


@jit
def _copy(to, source, lane):
    for row in range(to.shape[0]):
        to[row, lane] = source[row, lane]


@jit
def _enter(p, lane, margin, cursor):
    """Moves the cursor past overwritten rows and `margin` more rows; counts dropped transitions by their ordinals."""
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
    age, lo = age_of(place_of(p, lane, ticket)), int64_at(p.lo)[lane]
    return ticket - min(age, p.stack - 1) < lo or (age > 0 and ticket - ticket % p.state_every < lo)


@jit
def _settle(p, lane, cursor):
    """Moves the cursor past rows that no batch can hold; returns (SAMPLEABLE, rows to deliver) or (PENDING, unused)."""
    # Never read below a window: that memory is of another lane, or of no lane. Writers may lap a lane while its window
    # is read; the window is then empty and begins after the cursor. Damaged counters look the same, but stay so.
    lo, hi = int64_at(p.lo)[lane], int64_at(p.hi)[lane]
    while lo <= cursor[POSITION, lane] < hi:
        ticket = cursor[POSITION, lane]
        if not flags_of(place_of(p, lane, ticket)) & BOUNDARY:
            verdict, _, _, rows = check(p, lane, ticket)
            if verdict != NEVER:
                return verdict, rows
            cursor[DROPPED if _is_cut(p, lane, ticket) else SKIPPED, lane] += 1
            cursor[PASSED, lane] += 1
        cursor[POSITION, lane] += 1
    return PENDING, 0


@jit
def _look(p, lane, cursors, tallies, most):
    """Counts a lane's ready transitions or unrolls, up to `most`, and unfinished ones that later rows may complete."""
    settled, probe, hi = cursors[SETTLED], cursors[PROBE], int64_at(p.hi)[lane]
    _copy(settled, cursors[NEXT], lane)
    _enter(p, lane, tallies[MARGIN, lane], settled)
    behind = hi <= max(settled[POSITION, lane], int64_at(p.lo)[lane])
    tallies[LEAST, lane] = NOT_LOOKED_AT if behind else settled[POSITION, lane]
    verdict, rows = _settle(p, lane, settled)
    _copy(probe, settled, lane)
    ready = 0
    while verdict == SAMPLEABLE and ready < most:
        ready += 1
        probe[POSITION, lane] += rows
        verdict, rows = _settle(p, lane, probe)
    tallies[READY, lane] = ready
    return ready, (hi - probe[POSITION, lane] + p.length - 1) // p.length


@jit
def _share(ready, first, total, share):
    """Writes to `share` how `total` is split, about equally, over the lanes; no lane gets more than it has ready."""
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
def read(plan, columns, out, first, filled, cursors, tallies):
    """Adds transitions to a batch with `filled` filled slots: from each lane in turn, a run of rows after its cursor.

    If the lanes' shares cannot be equal, lanes from `first` on get one more. If too little is ready for a batch, only
    crowded lanes deliver. Sets the windows' seams, moves the first of `cursors`, int64 [3, 4, lanes], past the rows
    taken, and writes each lane's ready number, share and lowest ticket to `tallies`, int64 [5, lanes].

    Returns: the number of slots now filled; the number of transitions or unrolls that are filled or ready, counted at
        least up to a batch; and, if that is less than a batch, the number that later rows may complete.
    """
    p, cursor = plan[0], cursors[NEXT]
    find_seams(p)
    # Equal shares are usually enough. If some lanes have too little, look in the others for up to a whole batch.
    most = min(p.batch, 2 * ((p.batch - filled) // p.lanes + 1))
    while True:
        total, pending = filled, 0
        for lane in range(p.lanes):
            ready, more = _look(p, lane, cursors, tallies, most)
            total += ready
            pending += more
        if total >= p.batch or most == p.batch:
            break
        most = p.batch
    if total < p.batch:
        for lane in range(p.lanes):
            tallies[SHARE, lane] = tallies[READY, lane] * tallies[CROWDED, lane]
    else:
        _share(tallies[READY], first, p.batch - filled, tallies[SHARE])
    slot = filled
    for lane in range(p.lanes):
        _copy(cursor, cursors[SETTLED], lane)
        for _ in range(tallies[SHARE, lane]):
            ticket = cursor[POSITION, lane]
            if ticket >= int64_at(p.hi)[lane]:
                return filled, total, pending  # overwritten meanwhile: validation reports it
            taken, lowest, rows = take(p, columns, out, lane, ticket, slot)
            if not taken:
                return filled, total, pending
            tallies[LEAST, lane] = min(tallies[LEAST, lane], lowest)
            cursor[POSITION, lane] += rows
            cursor[PASSED, lane] += rows
            slot += 1
            if slot < p.batch:
                _settle(p, lane, cursor)
    return slot, total, pending
