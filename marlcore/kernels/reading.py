"""Copies transitions that the caller names, and finds whole episodes."""

from .gather import take_chosen
from .jit import inlined, int64_at, jit
from .rows import BOUNDARY, NO_ROWS, age_of, find_seams, flags_of, has_end, place_of


@jit
def read(plan, columns, out, rows, index):
    """Copies the transitions or sequences `index`, int64 [n], if they can be drawn, to the rows rows[0], rows[1], ...

    Returns: the number of filled slots. An index that cannot be drawn leaves its slot to the next one.
    """
    p, chosen = plan[0], NO_ROWS
    lanes, tickets, lo, hi = int64_at(p.lane), int64_at(p.ticket), int64_at(p.lo), int64_at(p.hi)
    find_seams(p)
    for i in range(len(index)):
        ticket = index[i] // p.lanes
        lane = index[i] - ticket * p.lanes
        if index[i] >= 0 and lo[lane] <= ticket < hi[lane]:
            lanes[chosen], tickets[chosen] = lane, ticket
            chosen += 1
    return take_chosen(p, columns, out, rows, NO_ROWS, chosen)


@inlined
def _first_of(p, lane, last):
    """Finds the first row of a row's episode, or the lowest of the episode's rows in the window."""
    first, lo = last, int64_at(p.lo)[lane]
    age = age_of(place_of(p, lane, first))
    while age > 0 and first > lo:  # several times in an episode that is longer than the largest age
        first = max(lo, first - age)
        age = age_of(place_of(p, lane, first))
    return first, age == 0


@jit
def find_episodes(plan, found):
    """Finds the episodes whose rows are all in the windows, each lane's newest episode first.

    Puts the lane, the first ticket and the number of transitions of up to n episodes into `found`, int64 [3, n].
    Returns: the number of episodes, which may be above n.
    """
    p, count = plan[0], NO_ROWS
    find_seams(p)
    for lane in range(p.lanes):
        lo, last = int64_at(p.lo)[lane], int64_at(p.hi)[lane] - 1
        while last >= lo:
            if flags_of(place_of(p, lane, last)) & BOUNDARY and last > lo:
                last -= 1
            first, whole = _first_of(p, lane, last)
            if whole and has_end(p, lane, last):
                if count < found.shape[1]:
                    found[0, count], found[1, count], found[2, count] = lane, first, last + 1 - first
                count += 1
            last = first - 1
    return count
