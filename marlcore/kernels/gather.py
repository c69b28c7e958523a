"""Copies chosen transitions or sequences from the lanes into a batch, and computes their n-step returns."""

from .jit import copy_bytes, float32_at, inlined, int64_at, uint8_at, uint32_at, zero_bytes
from .plan import NO_NEXT, ONE_MORE, OWN_STACKS, SEPARATE
from .rows import (
    BOUNDARY,
    PLACE,
    POLICY_VERSION,
    REWARD,
    SAMPLEABLE,
    TERMINATED,
    TRUNCATED,
    age_of,
    check,
    flags_of,
    last_of,
    place_of,
    prefetch_span,
    record_of,
    row_of,
    successor_of,
)

ROWS_AHEAD = 16  # slots between the prefetch of rows and their reads
AHEAD = 2  # slots between the prefetch of columns and their copy


@inlined
def copy(to, source, size):
    """Copies like memcpy, but 4 to 64 bytes by two moves, which may overlap; two moves cost less than a call."""
    if size > 64:
        copy_bytes(to, source, size)
    elif size > 32:
        copy_bytes(to, source, 32)
        copy_bytes(to + size - 32, source + size - 32, 32)
    elif size > 16:
        copy_bytes(to, source, 16)
        copy_bytes(to + size - 16, source + size - 16, 16)
    elif size >= 8:
        copy_bytes(to, source, 8)
        copy_bytes(to + size - 8, source + size - 8, 8)
    elif size >= 4:
        copy_bytes(to, source, 4)
        copy_bytes(to + size - 4, source + size - 4, 4)
    else:
        for i in range(size):
            copy_bytes(to + i, source + i, 1)


@inlined
def _copy_rows(p, column, to, lane, first, count):
    """Copies the column's rows of `count` tickets from `first` on, in one piece if they are contiguous."""
    size, row = column.size, row_of(p, lane, first)
    if column.stride == size and row_of(p, lane, first + count - 1) == row + count - 1:
        copy(to, column.base + row * size, count * size)
        return
    for i in range(count):
        copy(to + i * size, column.base + row_of(p, lane, first + i) * column.stride, size)


@inlined
def _copy_stack(p, column, to, lane, newest, age, count):
    """Copies the frame stack that ends with `newest`, padded where its episode begins, and `count` - 1 later frames."""
    size, pads = column.size, p.stack - 1 - age
    for i in range(pads):
        if p.repeat:
            _copy_rows(p, column, to + i * size, lane, newest - age, 1)
        else:
            zero_bytes(to + i * size, size)
    _copy_rows(p, column, to + pads * size, lane, newest - age, age + count)


@inlined
def _gather_stacks(p, column, to, lane, ticket, rows, age, first, following):
    """Copies a stack for each row: the row's own stack or, if `following`, its successor's."""
    size = p.stack * column.size
    for i in range(rows):
        newest = int64_at(p.successors)[first + i] if following else ticket + i
        _copy_stack(p, column, to + i * size, lane, newest, min(age + newest - ticket, p.stack - 1), 1)
    zero_bytes(to + rows * size, (p.length - rows) * size)


@inlined
def _gather_frames(p, column, out, lane, ticket, rows, age, slot):
    """Copies one slot's frames: a stack for each row, or stack - 1 frames before the ticket and one for each row."""
    size, successors, first = column.size, int64_at(p.successors), slot * p.length
    to, then = out + column.out + slot * column.step, out + column.next_out + slot * column.next_step
    if column.next >= OWN_STACKS:
        _gather_stacks(p, column, then, lane, ticket, rows, age, first, True)
    if column.next == SEPARATE:
        _gather_stacks(p, column, to, lane, ticket, rows, age, first, False)
        return
    shared = column.next == ONE_MORE
    near = p.stack - 1 + p.length + shared
    follows = shared and successors[first + rows - 1] == ticket + rows
    _copy_stack(p, column, to, lane, ticket, age, rows + follows)
    done = p.stack - 1 + rows + follows
    if shared and not follows:
        _copy_rows(p, column, to + done * size, lane, successors[first + rows - 1], 1)
        done += 1
    if done < near:
        zero_bytes(to + done * size, (near - done) * size)


@inlined
def _gather_field(p, column, out, lane, ticket, rows, slot):
    to = out + column.out + slot * p.length * column.size
    _copy_rows(p, column, to, lane, ticket, rows)
    if rows < p.length:
        zero_bytes(to + rows * column.size, (p.length - rows) * column.size)


@inlined
def _gather_state(p, column, out, lane, ticket, slot):
    to = out + column.out + slot * column.size
    if age_of(place_of(p, lane, ticket)) == 0:
        zero_bytes(to, column.size)
        return
    at = row_of(p, lane, ticket) // p.state_every
    copy(to, column.base + at * column.stride, column.size)


@inlined
def _sum_rewards(p, lane, first, last, word):
    """Returns the discounted sum of the rewards of rows `first` to `last`, and the discount of the value after them."""
    total, discount = 0.0, 1.0
    for ticket in range(first, last + 1):
        floats = float32_at(record_of(p, lane, ticket))
        total += discount * floats[word]
        discount *= p.gamma
    return total, discount


@inlined
def _write_vector(p, out, lane, first, last, at):
    for component in range(p.rewards):
        total, _ = _sum_rewards(p, lane, first, last, REWARD + component)
        float32_at(out + p.reward)[at * p.rewards + component] = total


@inlined
def _write_returns(p, out, lane, ticket, rows, at):
    """Writes the returns of `rows` transitions from `ticket` on; validation detects rows overwritten meanwhile."""
    for i in range(rows):
        _, last, flags = last_of(p, lane, ticket + i)
        _, successor, late = successor_of(p, lane, last, flags)
        total, discount = _sum_rewards(p, lane, ticket + i, last, REWARD)
        int64_at(p.successors)[at + i] = successor
        if p.rewards == 1:
            float32_at(out + p.reward)[at + i] = total
        else:
            _write_vector(p, out, lane, ticket + i, last, at + i)
        float32_at(out + p.discount)[at + i] = 0.0 if flags & TERMINATED else discount
        uint8_at(out + p.terminated)[at + i] = (flags & TERMINATED) != 0
        uint8_at(out + p.truncated)[at + i] = (flags & TRUNCATED) != 0 or late


@inlined
def _write_marks(p, out, lane, ticket, rows, age, slot):
    int64_at(out + p.index)[slot] = ticket * p.lanes + lane
    float32_at(out + p.weight)[slot] = 1.0
    valid, versions = uint8_at(out + p.valid), int64_at(out + p.policy_version)
    # A sequence that begins its episode needs no burn-in: its recurrent state is known.
    burn_in = p.burn_in if age_of(place_of(p, lane, ticket)) else 0
    for step in range(p.length):
        at = slot * p.length + step
        real = step < rows
        uint8_at(out + p.mask)[at] = real and step >= burn_in
        for place in range(p.stack):
            valid[at * p.stack + place] = real and p.stack - 1 - place <= age + step
        if real:
            versions[at] = uint32_at(record_of(p, lane, ticket + step))[POLICY_VERSION]
            continue
        versions[at] = 0
        zero_bytes(out + p.reward + 4 * at * p.rewards, 4 * p.rewards)
        float32_at(out + p.discount)[at] = 0.0
        uint8_at(out + p.terminated)[at] = 0
        uint8_at(out + p.truncated)[at] = 0


@inlined
def take(p, columns, out, lane, ticket, slot):
    """Copies a ticket's transition or sequence into row `slot` of the batch at the address `out`.

    The lane's window must include the rows where episodes end. Returns: whether the ticket can be drawn, the lowest
    ticket read, and the number of rows taken; see `check`.
    """
    verdict, age, lowest, rows = check(p, lane, ticket)
    if verdict != SAMPLEABLE:
        return False, lowest, rows
    _write_returns(p, out, lane, ticket, rows, slot * p.length)
    _write_marks(p, out, lane, ticket, rows, age, slot)
    for f in range(p.frames):
        _gather_frames(p, columns[f], out, lane, ticket, rows, age, slot)
    for f in range(p.frames, p.frames + p.fields):
        _gather_field(p, columns[f], out, lane, ticket, rows, slot)
    for f in range(p.frames + p.fields, p.frames + p.fields + p.states):
        _gather_state(p, columns[f], out, lane, ticket, slot)
    return True, lowest, rows


@inlined
def _prefetch_columns(p, columns, lane, ticket):
    for f in range(p.frames + p.fields):
        column = columns[f]
        if column.stride != p.record_stride:
            first = ticket - (p.stack - 1) * (f < p.frames)
            at = column.base + row_of(p, lane, first) * column.stride
            prefetch_span(at, column.size - 1)


@inlined
def _take_whole(p, columns, out, rows, first, count):
    """Implements `take_chosen` in the general case."""
    lanes, tickets, lowest = int64_at(p.lane), int64_at(p.ticket), int64_at(p.lowest)
    filled = first
    for slot in range(first, count):
        lane, ticket = lanes[slot], tickets[slot]
        if p.far and slot + AHEAD < count:
            _prefetch_columns(p, columns, lanes[slot + AHEAD], tickets[slot + AHEAD])
        taken, least, _ = take(p, columns, out, lane, ticket, rows[filled])
        if taken:
            lanes[filled], tickets[filled], lowest[filled] = lane, ticket, least
            filled += 1
    return filled


@inlined
def _take_heads(p, out, rows, first, count):
    """Writes the fields in the heads of chosen transitions that can be drawn; returns the end of the filled slots.

    Sets these slots' rows and successors.
    """
    lanes, tickets, own, after = int64_at(p.lane), int64_at(p.ticket), int64_at(p.row), int64_at(p.after)
    rewards, discounts = float32_at(out + p.reward), float32_at(out + p.discount)
    terminated, truncated = uint8_at(out + p.terminated), uint8_at(out + p.truncated)
    versions, index = int64_at(out + p.policy_version), int64_at(out + p.index)
    weights, valid = float32_at(out + p.weight), uint8_at(out + p.valid)
    records, stride, lanes_in_all, gamma, filled = p.records, p.record_stride, p.lanes, p.gamma, first
    for slot in range(first, count):
        lane, ticket, at = lanes[slot], tickets[slot], own[slot]
        head = uint32_at(records + at * stride)
        flags = flags_of(head[PLACE])
        verdict, successor, late = successor_of(p, lane, ticket, flags)
        if verdict != SAMPLEABLE or flags & BOUNDARY:
            continue
        row = rows[filled]
        rewards[row] = float32_at(records + at * stride)[REWARD]
        discounts[row] = 0.0 if flags & TERMINATED else gamma
        terminated[row] = (flags & TERMINATED) != 0
        truncated[row] = (flags & TRUNCATED) != 0 or late
        versions[row] = head[POLICY_VERSION]
        index[row] = ticket * lanes_in_all + lane
        weights[row] = 1.0
        valid[row] = 1
        lanes[filled], tickets[filled] = lane, ticket
        own[filled], after[filled] = at, row_of(p, lane, successor)
        filled += 1
    return filled


@inlined
def _copy_column(p, column, to, step, own, rows, first, filled):
    """Copies a field of the slots' rows to the batch's rows; the common sizes have loops of few instructions."""
    base, stride, size = column.base, column.stride, column.size
    far = stride != p.record_stride
    if size == 4:
        for slot in range(first, filled):
            copy_bytes(to + rows[slot] * step, base + own[slot] * stride, 4)
    elif size == 8:
        for slot in range(first, filled):
            copy_bytes(to + rows[slot] * step, base + own[slot] * stride, 8)
    else:
        for slot in range(first, filled):
            if far and slot + AHEAD < filled:
                prefetch_span(base + own[slot + AHEAD] * stride, size - 1)
            copy(to + rows[slot] * step, base + own[slot] * stride, size)


@inlined
def _take_plain(p, columns, out, rows, first, count):
    """Implements `take_chosen` for single one-step transitions without a stack or a vector of rewards.

    Copies field by field, and leaves the lowest tickets unset.
    """
    filled = _take_heads(p, out, rows, first, count)
    own, after = int64_at(p.row), int64_at(p.after)
    for f in range(p.frames):
        column = columns[f]
        _copy_column(p, column, out + column.out, column.step, own, rows, first, filled)
        if column.next != NO_NEXT:
            _copy_column(p, column, out + column.next_out, column.next_step, after, rows, first, filled)
    for f in range(p.frames, p.frames + p.fields):
        column = columns[f]
        _copy_column(p, column, out + column.out, column.size, own, rows, first, filled)
    return filled


@inlined
def _bring(p, first, count):
    """Prefetches the parts of records that the slots first to count - 1 will read, and notes the slots' rows.

    A processor drops prefetches beyond some twenty at a time. It overlaps look-ups of pages only within some hundreds
    of instructions. The copying loops run that many for a few rows, so a separate short loop does the reads.
    """
    lanes, tickets, own, after = int64_at(p.lane), int64_at(p.ticket), int64_at(p.row), int64_at(p.after)
    records, stride = p.records, p.record_stride
    before, behind = 0 if p.far else (p.stack - 1) * stride, (p.n_step + p.length) * stride
    end = records + p.lanes * p.capacity * stride
    for slot in range(first, count):  # a separate loop, since the next one must be short
        own[slot] = row_of(p, lanes[slot], tickets[slot])
    for slot in range(first, min(first + ROWS_AHEAD, count)):
        prefetch_span(records + own[slot] * stride - before, before + behind - 1)
    for slot in range(first, count):
        if slot + ROWS_AHEAD < count:
            prefetch_span(records + own[slot + ROWS_AHEAD] * stride - before, before + behind - 1)
        at = records + own[slot] * stride
        # Stored so that the compiler keeps the reads
        after[slot] = uint32_at(at)[PLACE] ^ uint32_at(min(at + behind, end))[-1]


@inlined
def take_chosen(p, columns, out, rows, first, count):
    """Copies the tickets chosen for slots [first, count), if they can be drawn; returns the number of filled slots.

    If a ticket cannot be drawn, the next ticket takes its slot. Slot i fills output row rows[i].
    """
    _bring(p, first, count)
    if p.plain:
        return _take_plain(p, columns, out, int64_at(rows.ctypes.data), first, count)
    return _take_whole(p, columns, out, rows, first, count)
