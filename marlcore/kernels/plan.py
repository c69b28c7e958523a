"""A plan describes lanes, window and batch to a kernel, in one argument that is made once.

A plan is an array of one record; its columns are a separate array. The plan's maker keeps the memory at the plan's
addresses alive. A batch's fields lie at offsets from the batch's address.
"""

from typing import Any

import numpy as np

# Frames of next_obs: none; the one frame that follows those of obs in their block; a stack for each row, behind obs; or
# SEPARATE, where both obs and next_obs have a block of their own, with a stack for each row
NO_NEXT, ONE_MORE, OWN_STACKS, SEPARATE = range(4)


def record(table: str, floats: str = "") -> np.dtype[Any]:
    """Returns the dtype of a record of 8-byte words: float64 for the names in `floats`, integers for the others.

    Each line of the table has one or several names, and after two spaces their meaning.
    """
    names = " ".join(line.strip().partition("  ")[0] for line in table.splitlines()).split()
    return np.dtype([(name, "f8" if name in floats.split() else "i8") for name in names])


COLUMN = record("""
    base    address of the field in row 0
    stride  bytes from row to row
    size    bytes of the field
    out     offset in the batch
    next    of frames: NO_NEXT, ONE_MORE, OWN_STACKS or SEPARATE
    step    of frames: bytes in the batch from slot to slot
    next_out next_step  of frames: the same for next_obs
""")

PLAN = record(
    """
    records        address of row 0's record
    record_stride  bytes from record to record
    lanes
    capacity       rows of a lane
    lo hi          addresses of int64 [lanes]: the tickets [lo, hi) that each lane holds
    seam           address of int64 [lanes]: the ticket in (lo, lo + capacity] that lies in row 0
    before         address of int64 [lanes]: the number of tickets in the windows of the lanes before
    stack n_step gamma length burn_in period repeat stored_next state_every  the window to draw: see transitions.Window
    plain          whether the window is one transition without a stack, of one step, and its reward one number
    frames fields states  numbers of columns: frames come first, then other fields, then recurrent states
    far            whether a column lies outside the records
    batch          transitions or sequences of a batch
    rewards        components of a reward: 1, or those of a vector
    reward discount terminated truncated policy_version valid mask index weight  offsets of arrays in the batch
    lane ticket lowest  addresses of scratch, int64 [batch], one item a slot
    row after      likewise: the slot's row, counted over all lanes, and that of its successor
    successors     address of scratch, int64 [batch * length]
    generator      address of uint64 [4]
    mark           of this batch's rows, from 1 to 255; 0 if a row may be drawn twice
    drawn          address of uint8 [lanes * capacity]: each row's mark, from the last batch for which it was chosen
    """,
    floats="gamma",
)
