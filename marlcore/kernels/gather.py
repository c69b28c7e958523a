"""Choosing transitions uniformly and copying them out of the lanes.

The kernels see one segment's body as words, and read rows that writers may be overwriting: whatever they read
there is clamped before it is used as an index, and believed only once the C core has validated the rows.

Head of a record, as 32-bit words: ordinal | age + flags << 16 | policy_version | reward (csrc/api.h).
"""

from __future__ import annotations

import numpy as np

from .jit import copy_bytes, jit, prefetch

__all__ = ["gather", "list_sampleable", "plan"]

TERMINATED, TRUNCATED, BOUNDARY = 1, 2, 4

# Entries of `geometry`
RECORD_BASE, RECORD_STRIDE, CAPACITY, LANES, STACK, N_STEP, STORED_NEXT = range(7)
# Rows of `windows`; the seam is the one ticket in reach of a window that lies in row 0
LO, HI, SEAM = range(3)
# Rows of `chosen`
LANE, LOWEST, TICKET, SUCCESSOR, AGE, ROW = range(6)
# Rows of `numbers`
REWARD, DISCOUNT, WEIGHT = range(3)
# Rows of `ends`
IS_TERMINATED, IS_TRUNCATED = range(2)
# Rows of `tags`
INDEX, POLICY_VERSION = range(2)
# Columns of a frame table and of a field table
BASE, STRIDE, SIZE, OUT, NEXT = range(5)


@jit
def _rotl(x, k):
    return (x << np.uint64(k)) | (x >> np.uint64(64 - k))


@jit
def next_random(state):
    """xoshiro256++ (Blackman and Vigna 2021, "Scrambled linear pseudorandom number generators", figure 3)."""
    result = _rotl(state[0] + state[3], 23) + state[0]
    t = state[1] << np.uint64(17)
    state[2] ^= state[0]
    state[3] ^= state[1]
    state[1] ^= state[2]
    state[0] ^= state[3]
    state[2] ^= t
    state[3] = _rotl(state[3], 45)
    return result


@jit
def below(state, bound):
    """A number in [0, bound), bound < 2^32, each equally likely (Lemire 2019, arXiv:1805.10941, algorithm 5)."""
    wide = np.uint64(bound)
    product = (next_random(state) >> np.uint64(32)) * wide
    low = product & np.uint64(0xFFFFFFFF)
    if low < wide:
        threshold = (np.uint64(1 << 32) - wide) % wide
        while low < threshold:
            product = (next_random(state) >> np.uint64(32)) * wide
            low = product & np.uint64(0xFFFFFFFF)
    return np.int64(product >> np.uint64(32))


@jit
def _row(geometry, windows, lane, ticket):
    """The row of a ticket in its lane's window, counted over all lanes; a division costs more than a cache hit."""
    row = ticket - windows[SEAM, lane]
    return (lane + (row < 0)) * geometry[CAPACITY] + row


@jit
def _head(geometry, windows, lane, ticket):
    """Index of a record's first 32-bit word."""
    return (geometry[RECORD_BASE] + _row(geometry, windows, lane, ticket) * geometry[RECORD_STRIDE]) >> 2


@jit
def _flags(words, head):
    return (words[head + 1] >> np.uint32(16)) & np.uint32(0xFF)


@jit
def _age(words, head):
    return np.int64(words[head + 1] & np.uint32(0xFFFF))


@jit
def _resolve(words, floats, geometry, gamma, windows, lane, ticket, slot, chosen, numbers, ends, row):
    """Whether a ticket is sampleable; writes what it stands for into slot `slot` and output row `row`.

    A transition is: not a boundary row, all frames of its stack held, and within n steps either terminated,
    or truncated with its boundary row, or followed by n rows of its own episode.
    """
    lo, hi = windows[LO, lane], windows[HI, lane]
    head = _head(geometry, windows, lane, ticket)
    if _flags(words, head) & BOUNDARY:
        return False
    age = min(_age(words, head), geometry[STACK] - 1)
    if ticket - age < lo:
        return False
    total, discount, steps, last = 0.0, 1.0, 0, ticket
    stored_next = geometry[STORED_NEXT] != 0
    while True:
        flags = _flags(words, head)
        total += discount * floats[head + 3]
        discount *= gamma
        steps += 1
        if stored_next or flags & (TERMINATED | TRUNCATED) or steps == geometry[N_STEP]:
            break
        last += 1
        if last >= hi:
            return False
        head = _head(geometry, windows, lane, last)
        if _age(words, head) == 0 or _flags(words, head) & BOUNDARY:
            return False
    successor = last + 1
    if stored_next:
        successor = last
    elif successor >= hi:
        if not flags & TERMINATED:
            return False
        successor = last
    else:
        after = _head(geometry, windows, lane, successor)
        follows = _age(words, after) != 0
        if flags & (TERMINATED | TRUNCATED):
            follows = follows and _flags(words, after) & BOUNDARY != 0
        if not follows:
            if not flags & TERMINATED:
                return False
            successor = last
    chosen[LANE, slot] = lane
    chosen[LOWEST, slot] = ticket - age
    chosen[TICKET, slot] = ticket
    chosen[SUCCESSOR, slot] = successor
    chosen[AGE, slot] = age
    chosen[ROW, slot] = row
    numbers[REWARD, row] = total
    numbers[DISCOUNT, row] = 0.0 if flags & TERMINATED else discount
    numbers[WEIGHT, row] = 1.0
    ends[IS_TERMINATED, row] = (flags & TERMINATED) != 0
    ends[IS_TRUNCATED, row] = (flags & TRUNCATED) != 0
    return True


@jit
def plan(words, floats, geometry, gamma, windows, state, rows, count, chosen, numbers, ends):
    """Draws transitions for output rows `rows[:count]`, each sampleable one equally likely.

    Args:
        words, floats: the segment's body, as uint32 and as float32.
        geometry: int64, see the names above.
        gamma: discount of one step.
        windows: int64 [3, lanes]: the tickets [lo, hi) of each lane; the seams are found here.
        state: uint64 [4], the generator's.
        rows: int64, the output rows to fill.
        count: how many of them.
        chosen: int64 [6, batch], out: what slot i was given.
        numbers, ends: float32 [3, batch] and bool [2, batch], out: by output row.

    Returns: (slots filled, draws refused); fewer than `count` slots when nearly all draws were refused.
    """
    total = _find_seams(geometry, windows)
    filled, refused = 0, 0
    patience = 64 * count + 1024
    while total > 0 and filled < count and refused < patience:
        # All draws first, so that their cache misses overlap.
        for slot in range(filled, count):
            lane, ticket = _draw(windows, state, total)
            chosen[LANE, slot], chosen[TICKET, slot] = lane, ticket
            head = 4 * _head(geometry, windows, lane, ticket)
            prefetch(words.ctypes.data + head)
            prefetch(words.ctypes.data + head + geometry[RECORD_STRIDE])
        for slot in range(filled, count):
            lane, ticket = chosen[LANE, slot], chosen[TICKET, slot]
            row = rows[filled]
            if _resolve(words, floats, geometry, gamma, windows, lane, ticket, filled, chosen, numbers, ends, row):
                filled += 1
            else:
                refused += 1
    return filled, refused


@jit
def _find_seams(geometry, windows):
    """Completes the windows; the tickets in all of them together."""
    total = 0
    for lane in range(windows.shape[1]):
        lo = windows[LO, lane]
        windows[SEAM, lane] = lo - lo % geometry[CAPACITY] + geometry[CAPACITY]
        total += windows[HI, lane] - lo
    return total


@jit
def _draw(windows, state, total):
    """Any (lane, ticket) of the windows, each equally likely."""
    place = below(state, total)
    lane = 0
    while place >= windows[HI, lane] - windows[LO, lane]:
        place -= windows[HI, lane] - windows[LO, lane]
        lane += 1
    return lane, windows[LO, lane] + place


@jit
def list_sampleable(words, floats, geometry, gamma, windows, chosen, numbers, ends, row, found):
    """Writes (lane, ticket) of every sampleable transition into found, int64 [2, rows]; returns how many.

    Slot 0 of chosen and output row `row`, which must be one that is yet to be filled, are scratch.
    """
    _find_seams(geometry, windows)
    count = 0
    for lane in range(windows.shape[1]):
        for ticket in range(windows[LO, lane], windows[HI, lane]):
            if _resolve(words, floats, geometry, gamma, windows, lane, ticket, 0, chosen, numbers, ends, row):
                found[0, count] = lane
                found[1, count] = ticket
                count += 1
    return count


@jit
def plan_from(words, floats, geometry, gamma, windows, state, rows, count, chosen, numbers, ends, found, listed):
    """`plan` for a lane where few rows are sampleable: draws from the list that `list_sampleable` made."""
    filled = 0
    for slot in range(count):
        pick = below(state, listed)
        lane, ticket, row = found[0, pick], found[1, pick], rows[slot]
        if _resolve(words, floats, geometry, gamma, windows, lane, ticket, filled, chosen, numbers, ends, row):
            filled += 1
    return filled


@jit
def _copy(to, source, size):
    if size == 4:
        copy_bytes(to, source, 4)
    elif size == 8:
        copy_bytes(to, source, 8)
    elif size == 16:
        copy_bytes(to, source, 16)
    elif size == 1:
        copy_bytes(to, source, 1)
    else:
        copy_bytes(to, source, size)


@jit
def _gather_frames(body, out, table, geometry, windows, repeat, lane, ticket, successor, age, next_age, row):
    """One row's frames: `stack` that end at the ticket, then those of the successor's stack not yet there.

    table[NEXT] is how many frames the successor's stack lies behind the first; 1 shares all but one frame.
    """
    size, shift, stack = table[SIZE], table[NEXT], geometry[STACK]
    to = out.ctypes.data + table[OUT] + row * (stack + shift) * size
    base = body.ctypes.data + table[BASE]
    for place in range(stack + shift):
        back = stack - 1 - place
        newest, depth = ticket, age
        if back < 0 or place >= stack:
            back = stack - 1 - (place - shift)
            newest, depth = successor, next_age
        if back > depth and not repeat:
            cell = to + place * size
            for i in range(size):
                out[cell - out.ctypes.data + i] = 0
            continue
        frame = newest - min(back, depth)
        _copy(to + place * size, base + _row(geometry, windows, lane, frame) * table[STRIDE], size)


@jit
def gather(body, words, geometry, windows, count, chosen, frames, fields, repeat, out, tags, valid):
    """Copies the chosen transitions into a batch.

    Args:
        body, words: the segment's body as uint8 and as uint32.
        geometry: int64, see the names above.
        windows: int64 [3, lanes], as `plan` left them.
        count: slots of `chosen` to copy.
        chosen: int64 [6, batch], from `plan`.
        frames: int64 [observation fields, 5]: base, row stride, size, offset in out, distance of next frames.
        fields: int64 [other fields, 5]: the same; no next frames.
        repeat: pad a stack at an episode's start with its first frame, else with zeros.
        out: uint8, the batch's bytes.
        tags: int64 [2, batch], out: index and policy version.
        valid: bool [batch, stack], out: whether a frame is no padding.
    """
    stack, lanes = geometry[STACK], geometry[LANES]
    for slot in range(count):
        lane, ticket, row = chosen[LANE, slot], chosen[TICKET, slot], chosen[ROW, slot]
        successor, age = chosen[SUCCESSOR, slot], chosen[AGE, slot]
        head = _head(geometry, windows, lane, ticket)
        tags[INDEX, row] = ticket * lanes + lane
        tags[POLICY_VERSION, row] = words[head + 2]
        for place in range(stack):
            valid[row, place] = stack - 1 - place <= age
        next_age = min(age + successor - ticket, stack - 1)
        for f in range(frames.shape[0]):
            _gather_frames(body, out, frames[f], geometry, windows, repeat, lane, ticket, successor, age, next_age, row)
    for f in range(fields.shape[0]):
        base, stride, size = fields[f, BASE], fields[f, STRIDE], fields[f, SIZE]
        source, to = body.ctypes.data + base, out.ctypes.data + fields[f, OUT]
        for slot in range(count):
            at = _row(geometry, windows, chosen[LANE, slot], chosen[TICKET, slot])
            _copy(to + chosen[ROW, slot] * size, source + at * stride, size)
