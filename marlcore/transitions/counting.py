"""Counts the transitions in lanes' windows, which may begin after the lanes' oldest rows."""

import errno
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..errors import MarlcoreError
from ..kernels.rows import ORDINAL, PLACE
from ..memory import BOUNDARY, error_of
from .layout import LaneView
from .window import LAP_LIMIT_S

Ints = NDArray[np.int64]


def count_transitions(view: LaneView, lo: Ints, hi: Ints, read_windows: Callable[[], object]) -> int:
    """Counts the transitions of all lanes with tickets in [lo, hi), int64 [lanes], which `read_windows` fills.

    Raises: SegmentCorrupt: the count exceeds the rows. MarlcoreError: writers overwrote rows in every attempt.
    """
    held, lanes, until = 0, np.arange(view.native.count), time.monotonic() + LAP_LIMIT_S
    while len(lanes):
        if time.monotonic() > until:
            path = view.segment.path
            raise MarlcoreError(f"{path}: writers overwrote every row that was counted; use a larger capacity")
        read_windows()
        lanes = lanes[lo[lanes] < hi[lanes]]
        low, high, whole = lo[lanes], hi[lanes], np.ones(len(lanes), bool)
        counts = _count(view, lanes, low, high)
        view.native.validator(lanes, low, whole.view(np.uint8))(len(lanes))
        if (counts > high - low)[whole].any():
            raise error_of(-errno.EUCLEAN)
        held += int(counts[whole].sum())
        lanes = lanes[~whole]
    return held


def _count(view: LaneView, lanes: Ints, low: Ints, high: Ints) -> Ints:
    """Counts each lane's transitions with tickets in [low, high), by the counts in rows `low` and `high` - 1."""
    geometry, body = view.geometry, view.segment.body
    rows, stride = geometry.capacity, geometry.stride(0)
    shape, strides = (geometry.lanes, rows, 2), (rows * stride, stride, 4)
    heads = np.ndarray(shape, np.uint32, body, geometry.column_offset(0), strides)
    first, newest = heads[lanes, low % rows], heads[lanes, (high - 1) % rows]
    after = newest[:, ORDINAL] + (newest[:, PLACE] >> 24 & BOUNDARY == 0)
    count: NDArray[np.uint32] = after - first[:, ORDINAL]
    return count.astype(np.int64)
