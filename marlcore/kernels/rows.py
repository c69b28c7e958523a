"""What a lane's rows mean: whether a ticket can be drawn, and the return, discount and ends that it stands for.

The kernels see one segment's body as words, and read rows that writers may be overwriting: whatever they read
there is clamped before it is used as an index, and believed only once the C core has validated the rows.

Head of a record, as 32-bit words: ordinal | age + flags << 24 | policy_version | reward (csrc/api.h).
"""

from __future__ import annotations

import numpy as np

from .jit import inlined, prefetch

__all__ = ["find_seams", "prefetch_row", "resolve"]

TERMINATED, TRUNCATED, BOUNDARY = 1, 2, 4

# Entries of `table`: the lanes, how to draw, and the offsets of the batch's blocks in its bytes
RECORD_BASE, RECORD_STRIDE, CAPACITY, LANES = range(4)
STACK, N_STEP, STORED_NEXT, LENGTH, BURN_IN, PERIOD, REPEAT, BATCH, STATE_EVERY = range(4, 13)
NUMBERS, ENDS, POLICY, VALID, MASK, INDEX, WEIGHT = range(13, 20)
# Rows of `windows`; the seam is the one ticket in reach of a window that lies in row 0
LO, HI, SEAM = range(3)
# Rows of `chosen`, a column for each slot: a slot is one transition, or one sequence of them
LANE, LOWEST, TICKET, STEPS, AGE, ROW = range(6)
# What `resolve` finds
NEVER, PENDING, SAMPLEABLE = range(3)

LINE = 64


@inlined
def row_of(table, windows, lane, ticket):
    """The row of a ticket in its lane's window, counted over all lanes; a division costs more than a cache hit."""
    row = ticket - windows[SEAM, lane]
    return (lane + (row < 0)) * table[CAPACITY] + row


@inlined
def head_of(table, windows, lane, ticket):
    """Index of a record's first 32-bit word."""
    return (table[RECORD_BASE] + row_of(table, windows, lane, ticket) * table[RECORD_STRIDE]) >> 2


@inlined
def flags_of(words, head):
    return words[head + 1] >> np.uint32(24)


@inlined
def age_of(words, head):
    return np.int64(words[head + 1] & np.uint32(0xFFFFFF))


@inlined
def prefetch_row(words, table, windows, lane, ticket):
    """Asks for a record and the one behind it, as far as they are small."""
    stride = table[RECORD_STRIDE]
    at = words.ctypes.data + 4 * head_of(table, windows, lane, ticket)
    for offset in range(0, min(2 * stride, 4 * LINE), LINE):
        prefetch(at + offset)
    prefetch(at + 2 * stride - 1)


@inlined
def find_seams(table, windows):
    """Completes the windows; the tickets in all of them together."""
    total = 0
    for lane in range(windows.shape[1]):
        lo = windows[LO, lane]
        windows[SEAM, lane] = lo - lo % table[CAPACITY] + table[CAPACITY]
        total += windows[HI, lane] - lo
    return total


@inlined
def _resolve_row(words, floats, table, gamma, windows, lane, ticket, out, floats_out, successors, at):
    """The n-step return from one transition, written to place `at` of the batch.

    Needed for it: within n steps either terminated, or truncated with its boundary row, or followed by n rows of
    its own episode. PENDING when rows yet to be written decide.
    """
    hi = windows[HI, lane]
    head = head_of(table, windows, lane, ticket)
    total, discount, steps, last = 0.0, 1.0, 0, ticket
    stored_next = table[STORED_NEXT] != 0
    while True:
        flags = flags_of(words, head)
        total += discount * floats[head + 3]
        discount *= gamma
        steps += 1
        if stored_next or flags & (TERMINATED | TRUNCATED) or steps == table[N_STEP]:
            break
        last += 1
        if last >= hi:
            return PENDING
        head = head_of(table, windows, lane, last)
        if age_of(words, head) == 0 or flags_of(words, head) & BOUNDARY:
            return NEVER
    successor = last + 1
    if stored_next:
        successor = last
    elif successor >= hi:
        if not flags & TERMINATED:
            return PENDING
        successor = last
    else:
        after = head_of(table, windows, lane, successor)
        follows = age_of(words, after) != 0
        if flags & (TERMINATED | TRUNCATED):
            follows = follows and flags_of(words, after) & BOUNDARY != 0
        if not follows:
            if not flags & TERMINATED:
                return NEVER
            successor = last
    places = table[BATCH] * table[LENGTH]
    successors[at] = successor
    floats_out[(table[NUMBERS] >> 2) + at] = total
    floats_out[(table[NUMBERS] >> 2) + places + at] = 0.0 if flags & TERMINATED else discount
    out[table[ENDS] + at] = (flags & TERMINATED) != 0
    out[table[ENDS] + places + at] = (flags & TRUNCATED) != 0
    return SAMPLEABLE


@inlined
def resolve(words, floats, table, gamma, windows, lane, ticket, slot, row, chosen, out, floats_out, successors):
    """Whether a ticket can be drawn; writes what it stands for into slot `slot` and output row `row`.

    A transition can when it is no boundary row, all frames of its stack are held, and its n-step return is whole.
    With sequences, so can each row whose age is a multiple of the period; the sequence ends early with its
    episode, or where a writer was replaced, and must be whole otherwise. One that ends within its burn-in holds
    nothing to train on.
    """
    lo, hi = windows[LO, lane], windows[HI, lane]
    head = head_of(table, windows, lane, ticket)
    if flags_of(words, head) & BOUNDARY:
        return NEVER
    whole_age = age_of(words, head)
    age = min(whole_age, table[STACK] - 1)
    if ticket - age < lo or (table[PERIOD] > 1 and whole_age % table[PERIOD] != 0):
        return NEVER
    lowest = ticket - age
    if table[STATE_EVERY] > 1 and whole_age > 0:
        # The state's row is shared by this many tickets, and is overwritten with the first of them.
        lowest = min(lowest, ticket - ticket % table[STATE_EVERY])
        if lowest < lo:
            return NEVER
    length, steps = table[LENGTH], 0
    while True:
        at = row * length + steps
        found = _resolve_row(
            words, floats, table, gamma, windows, lane, ticket + steps, out, floats_out, successors, at
        )  # fmt: skip
        if found != SAMPLEABLE:
            if found == PENDING or steps == 0:
                return found
            break
        steps += 1
        if steps == length or flags_of(words, head) & (TERMINATED | TRUNCATED):
            break
        if ticket + steps >= hi:
            return PENDING
        head = head_of(table, windows, lane, ticket + steps)
        if age_of(words, head) == 0:
            break
    if whole_age > 0 and steps <= table[BURN_IN]:
        return NEVER
    chosen[LANE, slot] = lane
    chosen[LOWEST, slot] = lowest
    chosen[TICKET, slot] = ticket
    chosen[STEPS, slot] = steps
    chosen[AGE, slot] = age
    chosen[ROW, slot] = row
    return SAMPLEABLE
