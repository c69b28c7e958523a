"""Copying chosen transitions, or sequences of them, out of the lanes and into a batch."""

from __future__ import annotations

import numpy as np

from .jit import copy_bytes, inlined, zero_bytes
from .rows import (
    AGE,
    BATCH,
    BURN_IN,
    CAPACITY,
    ENDS,
    INDEX,
    LANES,
    LENGTH,
    MASK,
    NUMBERS,
    POLICY,
    REPEAT,
    SAMPLEABLE,
    STACK,
    STATE_EVERY,
    STEPS,
    VALID,
    WEIGHT,
    age_of,
    head_of,
    resolve,
    row_of,
)

__all__ = ["take"]

# Columns of a table of frames, fields or states; NEXT is what of next_obs follows the frames of obs, see below
BASE, STRIDE, SIZE, OUT, NEXT = range(5)
NO_NEXT, ONE_MORE, OWN_STACKS = range(3)


@inlined
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


@inlined
def _stack_frame(body, frame, table, windows, to, lane, newest, back, age):
    """The frame `back` steps before `newest`, whose episode began `age` rows before it; or what pads it."""
    if back > age and not table[REPEAT]:
        zero_bytes(to, frame[SIZE])
    else:
        row = row_of(table, windows, lane, newest - min(back, age))
        _copy(to, body.ctypes.data + frame[BASE] + row * frame[STRIDE], frame[SIZE])


@inlined
def _gather_frames(body, out, frame, table, windows, successors, lane, ticket, steps, age, row):
    """One slot's frames.

    First those of obs: stack - 1 before the ticket, then one for each row. Then for next_obs nothing, or the one
    frame behind the last row (n = 1: obs and next_obs share all others), or a stack for each row.
    """
    stack, length, size = table[STACK], table[LENGTH], frame[SIZE]
    shared = frame[NEXT] == ONE_MORE
    near = stack - 1 + length + shared
    own = length * stack * (frame[NEXT] == OWN_STACKS)
    to = out.ctypes.data + frame[OUT] + row * (near + own) * size
    for place in range(stack - 1):
        _stack_frame(body, frame, table, windows, to, lane, ticket, stack - 1 - place, age)
        to += size
    for step in range(length + shared):
        if step < steps:
            _stack_frame(body, frame, table, windows, to, lane, ticket + step, 0, 0)
        elif step == steps and shared:
            _stack_frame(body, frame, table, windows, to, lane, successors[row * length + step - 1], 0, 0)
        else:
            zero_bytes(to, size)
        to += size
    if own == 0:
        return
    for step in range(length):
        if step >= steps:
            zero_bytes(to, stack * size)
            to += stack * size
            continue
        successor = successors[row * length + step]
        next_age = min(age + successor - ticket, stack - 1)
        for place in range(stack):
            _stack_frame(body, frame, table, windows, to, lane, successor, stack - 1 - place, next_age)
            to += size


@inlined
def _gather_fields(body, out, fields, table, windows, lane, ticket, steps, row):
    """One slot's other fields: a value for each row, zeros behind the last."""
    length = table[LENGTH]
    for f in range(fields.shape[0]):
        size = fields[f, SIZE]
        to = out.ctypes.data + fields[f, OUT] + row * length * size
        for step in range(steps):
            at = row_of(table, windows, lane, ticket + step)
            _copy(to + step * size, body.ctypes.data + fields[f, BASE] + at * fields[f, STRIDE], size)
        if steps < length:
            zero_bytes(to + steps * size, (length - steps) * size)


@inlined
def _gather_states(body, words, out, states, table, windows, lane, ticket, row):
    """One slot's recurrent states: what was stored at its first row, zeros where its episode begins."""
    for f in range(states.shape[0]):
        size = states[f, SIZE]
        to = out.ctypes.data + states[f, OUT] + row * size
        if age_of(words, head_of(table, windows, lane, ticket)) == 0:
            zero_bytes(to, size)
        else:
            first = lane * table[CAPACITY]
            place = (row_of(table, windows, lane, ticket) - first) // table[STATE_EVERY]
            at = first // table[STATE_EVERY] + place
            _copy(to, body.ctypes.data + states[f, BASE] + at * states[f, STRIDE], size)


@inlined
def _gather_marks(words, table, windows, lane, ticket, steps, age, row, out, floats_out, longs_out):
    """What says which transitions a slot holds, and which of its places are padding."""
    stack, length = table[STACK], table[LENGTH]
    places = table[BATCH] * length
    longs_out[(table[INDEX] >> 3) + row] = ticket * table[LANES] + lane
    floats_out[(table[WEIGHT] >> 2) + row] = 1.0
    # A sequence that begins its episode needs no burn-in: its recurrent state is known.
    burn_in = table[BURN_IN] if age_of(words, head_of(table, windows, lane, ticket)) else 0
    for step in range(length):
        at = row * length + step
        real = step < steps
        out[table[MASK] + at] = real and step >= burn_in
        for place in range(stack):
            out[table[VALID] + at * stack + place] = real and stack - 1 - place <= age + step
        if real:
            longs_out[(table[POLICY] >> 3) + at] = words[head_of(table, windows, lane, ticket + step) + 2]
            continue
        longs_out[(table[POLICY] >> 3) + at] = 0
        for block in range(2):
            floats_out[(table[NUMBERS] >> 2) + block * places + at] = 0.0
            out[table[ENDS] + block * places + at] = 0


@inlined
def take(body, table, gamma, windows, lane, ticket, slot, row, frames, fields, states, chosen, successors, out):
    """Copies a ticket's transition or sequence into output row `row`, when it can be drawn; whether it can.

    Args:
        body: uint8, the segment's body.
        table: int64, see rows.py.
        gamma: discount of one step.
        windows: int64 [3, lanes], complete.
        lane, ticket: what was drawn.
        slot: the column of `chosen` that says afterwards what was copied.
        frames, fields, states: int64 [n, 5]: base, row stride, size, offset in the batch, and for frames what
            follows them.
        chosen, successors: int64 [6, batch] and [batch * length], out.
        out: uint8, the batch's bytes.
    """
    words, floats_out, longs_out = body.view(np.uint32), out.view(np.float32), out.view(np.int64)
    floats = body.view(np.float32)
    found = resolve(words, floats, table, gamma, windows, lane, ticket, slot, row, chosen, out, floats_out, successors)
    if found != SAMPLEABLE:
        return False
    steps, age = chosen[STEPS, slot], chosen[AGE, slot]
    _gather_marks(words, table, windows, lane, ticket, steps, age, row, out, floats_out, longs_out)
    for f in range(frames.shape[0]):
        _gather_frames(body, out, frames[f], table, windows, successors, lane, ticket, steps, age, row)
    _gather_fields(body, out, fields, table, windows, lane, ticket, steps, row)
    if states.shape[0]:
        _gather_states(body, words, out, states, table, windows, lane, ticket, row)
    return True
