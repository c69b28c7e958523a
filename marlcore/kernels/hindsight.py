"""Replaces the goals of drawn transitions by goals that their own episodes achieved."""

from .jit import copy_bytes, inlined, int64_at, jit, prefetch, uint8_at, uint64_at
from .plan import record
from .random import below
from .rows import age_of, place_of, record_of, row_of

FUTURE, FINAL, EPISODE = range(3)

# One sampler's hindsight, an array of one record; its maker keeps the memory at its addresses alive
HINDSIGHT = record("""
    strategy          FUTURE, FINAL or EPISODE
    k                 relabelled draws for each one that keeps its goal
    achieved desired  the numbers of both goals' columns
    relabelled        address of uint8 [batch]: whether each output row has another goal
    last end step     addresses of scratch, int64 [batch]
""")


@inlined
def _follows(p, lane, ticket, later):
    """Returns whether `later` is in the ticket's episode: all rows of an episode have the same `ticket - age`."""
    return age_of(place_of(p, lane, later)) - later == age_of(place_of(p, lane, ticket)) - ticket


@inlined
def _find_last(p, h, count):
    """Narrows [last, end) of each slot until `last` is the last row of the slot's episode in the window.

    The search goes in doubling steps, then by halves. All slots take turns; each prefetches the row of its next turn,
    so that the cache misses overlap. A writer that overwrites rows during the search has overwritten the slot's lower
    ticket before, which validation detects.
    """
    lanes, tickets = int64_at(p.lane), int64_at(p.ticket)
    lasts, ends, steps = int64_at(h.last), int64_at(h.end), int64_at(h.step)
    active = True
    while active:
        active = False
        for slot in range(count):
            last, end, step = lasts[slot], ends[slot], steps[slot]
            if end - last <= 1:
                continue
            lane, probe = lanes[slot], last + step if step else (last + end) // 2
            if _follows(p, lane, tickets[slot], probe):
                last, step = probe, 2 * step
            else:
                end, step = probe, 0
            if last + step >= end:
                step = 0
            lasts[slot], ends[slot], steps[slot] = last, end, step
            prefetch(record_of(p, lane, last + step if step else (last + end) // 2))
            active = True


@inlined
def _goal(p, h, lane, ticket, last):
    """Draws the ticket of the row with the new goal; a row's achieved goal results from the previous row's action."""
    generator = uint64_at(p.generator)
    if h.strategy == FUTURE:
        return ticket + 1 + below(generator, last - ticket)
    if h.strategy == EPISODE:
        first = max(int64_at(p.lo)[lane], ticket - age_of(place_of(p, lane, ticket)) + 1)
        return first + below(generator, last - first + 1)
    return last


@jit
def relabel(plan, columns, out, rows, filled, hindsight):
    """Gives each of the first `filled` slots a new goal with probability k / (k + 1). Slot i fills output row rows[i].

    Each slot's lowest ticket becomes its goal's ticket, if that is lower. A transition without a later row keeps its
    goal: it terminated, and its next observation is not stored.
    """
    p, h = plan[0], hindsight[0]
    lanes, tickets, lowest = int64_at(p.lane), int64_at(p.ticket), int64_at(p.lowest)
    relabelled, goals, ends, steps = uint8_at(h.relabelled), int64_at(h.last), int64_at(h.end), int64_at(h.step)
    achieved, desired = columns[h.achieved], columns[h.desired]
    for slot in range(filled):
        ticket, changes = tickets[slot], below(uint64_at(p.generator), h.k + 1) > 0
        goals[slot], steps[slot] = ticket, ticket + 1 < int64_at(p.hi)[lanes[slot]]
        ends[slot] = int64_at(p.hi)[lanes[slot]] if changes else ticket + 1
        if p.plain:
            lowest[slot] = ticket
    _find_last(p, h, filled)
    for slot in range(filled):
        lane, last = lanes[slot], goals[slot]
        relabelled[rows[slot]] = last > tickets[slot]
        if last > tickets[slot]:
            goals[slot] = _goal(p, h, lane, tickets[slot], last)
            lowest[slot] = min(lowest[slot], goals[slot])
            prefetch(achieved.base + row_of(p, lane, goals[slot]) * achieved.stride)
    for slot in range(filled):
        row = rows[slot]
        if relabelled[row]:
            lane, age = lanes[slot], age_of(place_of(p, lanes[slot], tickets[slot]))
            source = achieved.base + row_of(p, lane, goals[slot]) * achieved.stride
            pads = 0 if p.repeat else p.stack - 1 - min(age, p.stack - 1)
            to, then = out + desired.out + row * desired.step, out + desired.next_out + row * desired.next_step
            for frame in range(pads, p.stack):
                copy_bytes(to + frame * desired.size, source, desired.size)
            for frame in range(max(0, pads - 1), p.stack):
                copy_bytes(then + frame * desired.size, source, desired.size)
