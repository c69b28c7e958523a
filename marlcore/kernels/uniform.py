"""Drawing transitions or sequences, each one that can be drawn with the same probability."""

from __future__ import annotations

import numpy as np

from .gather import take
from .jit import inlined, jit
from .random import below
from .rows import HI, LANE, LO, SAMPLEABLE, TICKET, find_seams, prefetch_row, resolve

__all__ = ["draw", "draw_listed", "list_sampleable"]


@jit
def draw(body, table, gamma, windows, state, rows, frames, fields, states, chosen, successors, out):
    """Draws for the output rows `rows`.

    Args:
        body: uint8, the segment's body.
        table: int64, see rows.py.
        gamma: discount of one step.
        windows: int64 [3, lanes]: the tickets [lo, hi) of each lane; the seams are found here.
        state: uint64 [4], the generator's.
        rows: int64, the output rows to fill.
        frames, fields, states: see gather.py.
        chosen: int64 [6, batch], out: what slot i was given.
        successors: int64 [batch * length], scratch.
        out: uint8, the batch's bytes.

    Returns: (slots filled, draws refused); fewer than asked for when nearly all draws were refused.
    """
    words = body.view(np.uint32)
    total = find_seams(table, windows)
    count, filled, refused = len(rows), 0, 0
    patience = 64 * count + 1024
    while total > 0 and filled < count and refused < patience:
        # All draws first, so that their cache misses overlap.
        for slot in range(filled, count):
            lane, ticket = _draw(windows, state, total)
            chosen[LANE, slot], chosen[TICKET, slot] = lane, ticket
            prefetch_row(words, table, windows, lane, ticket)
        for slot in range(filled, count):
            lane, ticket = chosen[LANE, slot], chosen[TICKET, slot]
            if take(
                body, table, gamma, windows, lane, ticket, filled, rows[filled],
                frames, fields, states, chosen, successors, out,
            ):  # fmt: skip
                filled += 1
            else:
                refused += 1
    return filled, refused


@inlined
def _draw(windows, state, total):
    """Any (lane, ticket) of the windows, each equally likely."""
    place = below(state, total)
    lane = 0
    while place >= windows[HI, lane] - windows[LO, lane]:
        place -= windows[HI, lane] - windows[LO, lane]
        lane += 1
    return lane, windows[LO, lane] + place


@jit
def list_sampleable(body, table, gamma, windows, chosen, successors, out, row, found):
    """Writes (lane, ticket) of whatever can be drawn into found, int64 [2, rows]; returns how many.

    Slot 0 of chosen and output row `row`, which must be one that is yet to be filled, are scratch.
    """
    words, floats = body.view(np.uint32), body.view(np.float32)
    find_seams(table, windows)
    count = 0
    for lane in range(windows.shape[1]):
        for ticket in range(windows[LO, lane], windows[HI, lane]):
            status = resolve(
                words, floats, table, gamma, windows, lane, ticket, 0, row,
                chosen, out, out.view(np.float32), successors,
            )  # fmt: skip
            if status == SAMPLEABLE:
                found[0, count] = lane
                found[1, count] = ticket
                count += 1
    return count


@jit
def draw_listed(
    body, table, gamma, windows, state, rows, frames, fields, states, chosen, successors, out, found, listed
):  # fmt: skip
    """`draw` where little can be drawn: from the list that `list_sampleable` made; how many slots were filled."""
    filled = 0
    for _ in range(len(rows)):
        pick = below(state, listed)
        filled += take(
            body, table, gamma, windows, found[0, pick], found[1, pick], filled, rows[filled],
            frames, fields, states, chosen, successors, out,
        )  # fmt: skip
    return filled
