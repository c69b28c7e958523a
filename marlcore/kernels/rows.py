"""Interprets a lane's rows and checks whether a ticket can be drawn; writes only the windows' seams.

The kernels read rows that writers may be overwriting. They clamp every value from a row before they use it as an index,
and trust it only once the C core has validated the row.

Head of a record, as 32-bit words: ordinal | age + flags << 24 | policy_version | reward (csrc/api.h).
"""

import numpy as np

from .jit import inlined, int64_at, prefetch, uint8_at, uint32_at

TERMINATED, TRUNCATED, BOUNDARY = 1, 2, 4
ENDED = TERMINATED | TRUNCATED

# Words of a record's head
ORDINAL, PLACE, POLICY_VERSION, REWARD = range(4)
# Rows of `windows`; see plan.py
LO, HI, SEAM, BEFORE = range(4)
# Rows of `chosen`, one column a slot; a slot is one transition or one sequence
LANE, TICKET, LOWEST = range(3)
# Results of a check; PENDING: depends on rows not yet written
NEVER, PENDING, SAMPLEABLE = range(3)

WHOLE = -1  # as a burn-in: a sequence must be a whole episode

CACHE_LINE = 64
MOST_LINES = 8  # prefetched of one span; the hardware's prefetcher continues
NO_ROWS = np.int64(0)  # start of counts: Numba would give a literal 0 a type of its own, with other code


@inlined
def row_of(p, lane, ticket):
    """Returns a ticket's row, counted over all lanes, without a division, which takes longer than a cache hit."""
    row = ticket - int64_at(p.seam)[lane]
    return (lane + (row < 0)) * p.capacity + row


@inlined
def record_of(p, lane, ticket):
    return p.records + row_of(p, lane, ticket) * p.record_stride


@inlined
def place_of(p, lane, ticket):
    """Returns a row's place in its episode: its age and flags in one word."""
    return uint32_at(record_of(p, lane, ticket))[PLACE]


@inlined
def flags_of(place):
    return place >> np.uint32(24)


@inlined
def age_of(place):
    return np.int64(place & np.uint32(0xFFFFFF))


@inlined
def prefetch_span(at, last):
    """Prefetches bytes 0 to `last` at an address; of a long span, only the first lines and the last."""
    prefetch(at)
    prefetch(at + min(CACHE_LINE, last))
    prefetch(at + last)
    if last > 2 * CACHE_LINE:
        for offset in range(2 * CACHE_LINE, min(last, MOST_LINES * CACHE_LINE), CACHE_LINE):
            prefetch(at + offset)


@inlined
def find_seams(p):
    """Sets each window's seam and the tickets before it (see plan.py); returns the number of tickets in all windows."""
    lo, hi, seam, before, total = int64_at(p.lo), int64_at(p.hi), int64_at(p.seam), int64_at(p.before), 0
    for lane in range(p.lanes):
        seam[lane] = lo[lane] - lo[lane] % p.capacity + p.capacity
        before[lane] = total
        total += hi[lane] - lo[lane]
    return total


@inlined
def is_marked(p, lane, ticket):
    """Returns whether the row was already chosen for this batch, which may not draw it again."""
    return p.mark != 0 and uint8_at(p.drawn)[row_of(p, lane, ticket)] == p.mark


@inlined
def mark_new(p, first, count):
    """Marks the rows of slots [first, count); drops slots with rows marked before; returns the remaining slots' end."""
    lanes, tickets, kept = int64_at(p.lane), int64_at(p.ticket), first
    for slot in range(first, count):
        lane, ticket = lanes[slot], tickets[slot]
        if not is_marked(p, lane, ticket):
            uint8_at(p.drawn)[row_of(p, lane, ticket)] = p.mark
            lanes[kept], tickets[kept] = lane, ticket
            kept += 1
    return kept


@inlined
def last_of(p, lane, ticket):
    """Finds the last row of a ticket's n-step return, which is the n-th row or the episode's last.

    Returns: (verdict, the row's ticket, the row's flags).
    """
    hi, last = int64_at(p.hi)[lane], ticket
    flags = flags_of(place_of(p, lane, ticket))
    for _ in range(p.n_step - 1):
        if flags & ENDED:
            break
        if last + 1 >= hi:
            return PENDING, last, flags
        last += 1
        place = place_of(p, lane, last)
        flags = flags_of(place)
        if age_of(place) == 0:
            return NEVER, last, flags
        if flags & BOUNDARY:
            last, flags = last - 1, np.uint64(TRUNCATED)
    return SAMPLEABLE, last, flags


@inlined
def successor_of(p, lane, last, flags):
    """Finds the row whose obs is the next_obs of a return that ends with `last`.

    A truncated row's successor is its boundary row. A terminated row without a boundary row is its own successor. A row
    without flags that has a boundary row was truncated late, after it had been written: see `Writer.end_episode`.

    Returns: (verdict, the successor's ticket, whether `last` was truncated late).
    """
    if p.stored_next:
        return SAMPLEABLE, last, False
    after = last + 1
    if after < int64_at(p.hi)[lane]:
        place = place_of(p, lane, after)
        if age_of(place) != 0 and not flags & ENDED:
            return SAMPLEABLE, after, flags_of(place) & BOUNDARY != 0
        if age_of(place) != 0 and flags_of(place) & BOUNDARY:
            return SAMPLEABLE, after, False
        return (SAMPLEABLE if flags & TERMINATED else NEVER), last, False
    return (SAMPLEABLE if flags & TERMINATED else PENDING), last, False


@inlined
def has_end(p, lane, ticket):
    """Returns whether an episode ends with a row, by its flags or, if it was truncated late, by its boundary row."""
    if flags_of(place_of(p, lane, ticket)) & ENDED:
        return True
    return ticket + 1 < int64_at(p.hi)[lane] and flags_of(place_of(p, lane, ticket + 1)) & BOUNDARY != 0


@inlined
def _check_return(p, lane, ticket):
    verdict, last, flags = last_of(p, lane, ticket)
    if verdict != SAMPLEABLE:
        return verdict
    return successor_of(p, lane, last, flags)[0]


@inlined
def check(p, lane, ticket):
    """Checks whether a ticket can be drawn; returns (verdict, frames before it, lowest ticket needed, rows).

    A transition can be drawn if it is not a boundary row, its lane holds all frames of its stack, and its n-step return
    is whole. The same holds for the first row of a sequence, whose age must be a multiple of the period. A sequence
    may end early where its episode ends or a writer was replaced; otherwise it must be whole. A sequence that ends
    within its burn-in has no transition to train on, and cannot be drawn. A whole episode must end within the length.
    """
    place, hi = place_of(p, lane, ticket), int64_at(p.hi)[lane]
    whole_age = age_of(place)
    age = min(whole_age, p.stack - 1)
    lowest = ticket - age
    if p.state_every > 1 and whole_age > 0:
        # This many tickets share the state's row, which is overwritten with the first of them.
        lowest = min(lowest, ticket - ticket % p.state_every)
    if flags_of(place) & BOUNDARY or lowest < int64_at(p.lo)[lane]:
        return NEVER, age, lowest, 0
    if p.period > 1 and whole_age % p.period != 0:
        return NEVER, age, lowest, 0
    rows = 0
    while True:
        verdict = _check_return(p, lane, ticket + rows)
        if verdict != SAMPLEABLE:
            if verdict == PENDING or rows == 0:
                return verdict, age, lowest, rows
            break
        rows += 1
        if rows == p.length or flags_of(place) & ENDED:
            break
        if ticket + rows >= hi:
            return PENDING, age, lowest, rows
        place = place_of(p, lane, ticket + rows)
        if age_of(place) == 0 or flags_of(place) & BOUNDARY:
            break
    if p.burn_in == WHOLE and not has_end(p, lane, ticket + rows - 1):
        return NEVER, age, lowest, rows
    if whole_age > 0 and rows <= p.burn_in:
        return NEVER, age, lowest, rows
    return SAMPLEABLE, age, lowest, rows
