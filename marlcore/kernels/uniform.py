"""Draws transitions or sequences uniformly among those that can be drawn."""

import numpy as np

from .gather import take_chosen
from .jit import inlined, int64_at, jit, uint64_at
from .random import below
from .rows import NO_ROWS, SAMPLEABLE, check, find_seams, is_marked, mark_new


@inlined
def _choose(p, first, count, total):
    """Chooses (lane, ticket) for slots [first, count)."""
    generator, lanes, tickets = uint64_at(p.generator), int64_at(p.lane), int64_at(p.ticket)
    lo, before, last, share = int64_at(p.lo), int64_at(p.before), p.lanes - 1, p.lanes / total
    for slot in range(first, count):
        place = below(generator, total)
        lane = min(np.int64(place * share), last)  # nearly always right, since lanes hold about as much each
        while place < before[lane]:
            lane -= 1
        while lane < last and place >= before[lane + 1]:
            lane += 1
        lanes[slot], tickets[slot] = lane, lo[lane] + place - before[lane]


@jit
def draw(plan, columns, out, rows):
    """Fills the rows `rows`, int64, of the batch at the address `out` by uniform draws; sets the windows' seams.

    Returns: (slots filled, draws refused); fills fewer slots than rows only if nearly all draws were refused.
    """
    p = plan[0]
    total = find_seams(p)
    count, filled, refused = len(rows), NO_ROWS, 0
    patience = 64 * count + 1024
    while total > 0 and filled < count and refused < patience:
        _choose(p, filled, count, total)
        chosen = mark_new(p, filled, count) if p.mark else count
        filled = take_chosen(p, columns, out, rows, filled, chosen)
        refused += count - filled
    return filled, refused


@jit
def list_sampleable(plan, sampleable):
    """Lists up to n tickets that can be drawn, as (lane, ticket), in `sampleable`, int64 [2, n]; returns their count.

    Tickets that this batch may not draw again are left out.
    """
    p = plan[0]
    find_seams(p)
    count = 0
    for lane in range(p.lanes):
        for ticket in range(int64_at(p.lo)[lane], int64_at(p.hi)[lane]):
            if count == sampleable.shape[1]:
                return count
            if check(p, lane, ticket)[0] == SAMPLEABLE and not is_marked(p, lane, ticket):
                sampleable[0, count] = lane
                sampleable[1, count] = ticket
                count += 1
    return count


@jit
def draw_listed(plan, columns, out, rows, sampleable, listed):
    """Draws from the `listed` tickets of `list_sampleable`, if these are few; returns the number of filled slots.

    If no row may be drawn twice, the list is shuffled as far as it is used (Fisher and Yates), and slots may stay free.
    """
    p = plan[0]
    once = p.mark != 0
    count = min(len(rows), listed) if once else len(rows)
    for slot in range(count):
        first = slot if once else 0
        pick = first + below(uint64_at(p.generator), listed - first)
        int64_at(p.lane)[slot], int64_at(p.ticket)[slot] = sampleable[0, pick], sampleable[1, pick]
        if once:  # then the first tickets of the list are the remaining ones
            sampleable[0, pick], sampleable[1, pick] = sampleable[0, slot], sampleable[1, slot]
    return take_chosen(p, columns, out, rows, NO_ROWS, mark_new(p, NO_ROWS, count) if once else count)
