"""A plan describes lanes, window and batch to a kernel, in one argument that is made once.

A plan is an array of one record; its columns are a separate array. The plan's maker keeps the memory at the plan's
addresses alive. A batch's fields lie at offsets from the batch's address.
"""

import numpy as np

# Frames of next_obs after those of obs: no frame, the one frame after the last, or a stack for each row
NO_NEXT, ONE_MORE, OWN_STACKS = range(3)

COLUMN = np.dtype(
    [
        ("base", "i8"),  # address of the field in row 0
        ("stride", "i8"),  # bytes from row to row
        ("size", "i8"),  # bytes of the field
        ("out", "i8"),  # offset in the batch
        ("next", "i8"),  # of frames: see above
    ]
)

PLAN = np.dtype(
    [
        # The lanes
        ("records", "i8"),  # address of row 0's record
        ("record_stride", "i8"),
        ("capacity", "i8"),  # rows of a lane
        ("lanes", "i8"),
        ("lo", "i8"),  # addresses of int64 [lanes]: the tickets [lo, hi) that each lane holds
        ("hi", "i8"),
        ("seam", "i8"),  # the ticket in (lo, lo + capacity] that lies in row 0
        # The window to draw: see transitions.Window
        ("stack", "i8"),
        ("n_step", "i8"),
        ("gamma", "f8"),
        ("length", "i8"),
        ("burn_in", "i8"),
        ("period", "i8"),
        ("repeat", "i8"),
        ("stored_next", "i8"),
        ("state_every", "i8"),
        ("plain", "i8"),  # one transition, no stack, one step
        # Numbers of columns: frames come first, then other fields, then recurrent states
        ("frames", "i8"),
        ("fields", "i8"),
        ("states", "i8"),
        ("far", "i8"),  # whether a column lies outside the records
        # The batch: its transitions or sequences, and the offsets of its arrays
        ("batch", "i8"),
        ("reward", "i8"),
        ("discount", "i8"),
        ("terminated", "i8"),
        ("truncated", "i8"),
        ("policy_version", "i8"),
        ("valid", "i8"),
        ("mask", "i8"),
        ("index", "i8"),
        ("weight", "i8"),
        # Scratch: addresses of int64 [batch], one item a slot, and of int64 [batch * length]
        ("lane", "i8"),
        ("ticket", "i8"),
        ("lowest", "i8"),
        ("successors", "i8"),
        ("generator", "i8"),  # address of uint64 [4]
    ]
)
