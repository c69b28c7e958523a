"""Reading transitions, or unrolls of them, in the order in which they were written, each once.

A cursor says for each lane where its reader stands; whatever can be delivered from there on is copied by `take`.
"""

from __future__ import annotations

import numpy as np

from .gather import take
from .jit import jit
from .rows import (
    BATCH,
    BOUNDARY,
    HI,
    LANES,
    LENGTH,
    LO,
    LOWEST,
    NEVER,
    PENDING,
    SAMPLEABLE,
    STACK,
    STATE_EVERY,
    STEPS,
    age_of,
    find_seams,
    flags_of,
    head_of,
    resolve,
)

__all__ = ["read"]

# Rows of a cursor: the next ticket, and the transitions below it; those of them that were overwritten before they
# were read, and those that nothing can be made of
POSITION, PASSED, DROPPED, SKIPPED = range(4)

NOT_LOOKED_AT = 1 << 62  # as the lowest ticket: it is never overwritten


@jit
def _copy(to, source, lane):
    for row in range(to.shape[0]):
        to[row, lane] = source[row, lane]


@jit
def _enter(words, table, windows, lane, margin, cursor):
    """Leaves behind what was overwritten, and `margin` rows more; ordinals say how many transitions that were."""
    lo, hi = windows[LO, lane], windows[HI, lane]
    oldest = min(lo + margin, hi - 1)
    if oldest < lo or oldest <= cursor[POSITION, lane]:
        return
    ordinal = np.int64(words[head_of(table, windows, lane, oldest)])
    missed = (ordinal - cursor[PASSED, lane]) & 0xFFFFFFFF
    cursor[DROPPED, lane] += missed
    cursor[PASSED, lane] += missed
    cursor[POSITION, lane] = oldest


@jit
def _is_cut(words, table, windows, lane, ticket):
    """Whether frames of a row's stack, or the state that is stored for it, were overwritten."""
    age, lo = age_of(words, head_of(table, windows, lane, ticket)), windows[LO, lane]
    every = table[STATE_EVERY]
    return ticket - min(age, table[STACK] - 1) < lo or (age > 0 and ticket - ticket % every < lo)


@jit
def _settle(words, floats, table, gamma, windows, lane, cursor, chosen, out, floats_out, successors, row):
    """Moves past what no batch can hold; SAMPLEABLE, with the row's steps in slot `row`, or PENDING."""
    # Below a window lies memory of another lane, or none: writers may lap a lane while its window is read, which is
    # empty then and begins behind the cursor. Damaged counters look the same, but stay so.
    while windows[LO, lane] <= cursor[POSITION, lane] < windows[HI, lane]:
        ticket = cursor[POSITION, lane]
        if not flags_of(words, head_of(table, windows, lane, ticket)) & BOUNDARY:
            found = resolve(
                words, floats, table, gamma, windows, lane, ticket, row, row, chosen, out, floats_out, successors
            )  # fmt: skip
            if found != NEVER:
                return found
            cursor[DROPPED if _is_cut(words, table, windows, lane, ticket) else SKIPPED, lane] += 1
            cursor[PASSED, lane] += 1
        cursor[POSITION, lane] += 1
    return PENDING


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
def read(
    body, table, gamma, windows, margin, first, frames, fields, states, chosen, successors, out,
    cursor, settled, probe, ready, share, lowest,
):  # fmt: skip
    """Copies the next batch: of each lane in turn one run of what follows the cursor, none when there is too little.

    Args:
        body, table, gamma, frames, fields, states, chosen, successors, out: see gather.py.
        windows: int64 [3, lanes]: the tickets [lo, hi) of each lane; the seams are found here.
        margin: int64 [lanes], rows at the beginning of each window to stay away from.
        first: the lane that is given one more where the lanes' shares cannot be equal.
        cursor: int64 [4, lanes], see above; moved behind the batch.
        settled: like cursor, out: moved as far as nothing that can be delivered is passed.
        probe, ready, share: int64 [4, lanes], [lanes], [lanes], scratch.
        lowest: int64 [lanes], out: the lowest ticket that was looked at.

    Returns: (whether a batch was copied; transitions or unrolls that are ready, counted up to a batch a lane; those
    that rows yet to be written may add without being one more row each).
    """
    words, floats, floats_out = body.view(np.uint32), body.view(np.float32), out.view(np.float32)
    batch = table[BATCH]
    find_seams(table, windows)
    total, pending = 0, 0
    for lane in range(table[LANES]):
        _copy(settled, cursor, lane)
        _enter(words, table, windows, lane, margin[lane], settled)
        behind = windows[HI, lane] <= max(settled[POSITION, lane], windows[LO, lane])
        lowest[lane] = NOT_LOOKED_AT if behind else settled[POSITION, lane]
        ready[lane] = 0
        found = _settle(
            words, floats, table, gamma, windows, lane, settled, chosen, out, floats_out, successors, 0
        )  # fmt: skip
        _copy(probe, settled, lane)
        while found == SAMPLEABLE and ready[lane] < batch:
            ready[lane] += 1
            probe[POSITION, lane] += chosen[STEPS, 0]
            found = _settle(
                words, floats, table, gamma, windows, lane, probe, chosen, out, floats_out, successors, 0
            )  # fmt: skip
        total += ready[lane]
        pending += (windows[HI, lane] - probe[POSITION, lane] + table[LENGTH] - 1) // table[LENGTH]
    if total < batch:
        return False, total, pending
    _share(ready, first, batch, share)
    slot = 0
    for lane in range(table[LANES]):
        _copy(cursor, settled, lane)
        for _ in range(share[lane]):
            ticket = cursor[POSITION, lane]
            if ticket >= windows[HI, lane] or not take(
                body, table, gamma, windows, lane, ticket, slot, slot,
                frames, fields, states, chosen, successors, out,
            ):  # fmt: skip
                return False, total, pending  # it was overwritten since: validation will say so
            lowest[lane] = min(lowest[lane], chosen[LOWEST, slot])
            cursor[POSITION, lane] += chosen[STEPS, slot]
            cursor[PASSED, lane] += chosen[STEPS, slot]
            slot += 1
            if slot < batch:
                _settle(
                    words, floats, table, gamma, windows, lane, cursor, chosen, out, floats_out, successors, slot
                )  # fmt: skip
    return True, total, pending
