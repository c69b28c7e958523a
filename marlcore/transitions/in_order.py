"""Copies batches in the order of writing, from a cursor in each lane, and validates the copies."""

import time
from collections.abc import Callable

import numpy as np

from ..errors import MarlcoreError
from ..kernels import inorder
from .batch import BatchMemory
from .layout import LaneView
from .window import LAP_LIMIT_S, ReadPlan, Window


class InOrder:
    """Copies the next transitions or unrolls of all lanes.

    Before each copy, after it has read the windows, it calls the user's function `prepare`, which sets `next` and
    `crowded`.

    Attributes:
        plan: the read plan; `prepare` may narrow its windows.
        next: int64 [4, lanes], the cursors where a copy begins, then those where it ended; see kernels/inorder.py.
        settled: the cursors, moved only past rows that no batch can hold.
        crowded: int64 [lanes], whether a lane delivers its rows even if they do not fill the batch.
        lapped: how often a batch was copied again, because a writer overwrote its rows.
    """

    def __init__(self, lanes: LaneView, window: Window, batch_size: int) -> None:
        count = lanes.geometry.lanes
        self.plan, self.lapped = ReadPlan(lanes, window, batch_size), 0
        self._view = lanes
        self._cursors = np.zeros((3, inorder.CURSOR_ROWS, count), np.int64)
        self.next, self.settled = self._cursors[inorder.NEXT], self._cursors[inorder.SETTLED]
        self._tallies = np.zeros((5, count), np.int64)
        self._margin, self.crowded = self._tallies[inorder.MARGIN], self._tallies[inorder.CROWDED]
        self._whole = np.ones(count, np.uint8)
        self._validate = lanes.native.validator(np.arange(count), self._tallies[inorder.LEAST], self._whole)

    def copy(
        self, memory: BatchMemory, prepare: Callable[[], None], first: int = 0, filled: int = 0
    ) -> tuple[int, int, int]:
        """Adds unvalidated rows to a batch with `filled` filled slots; returns the results of `inorder.read`."""
        d = self.plan
        d.read_windows()
        prepare()
        copied: tuple[int, int, int] = inorder.read(
            d.plan, d.columns, memory.address, first, filled, self._cursors, self._tallies
        )
        return copied

    def copy_whole(
        self, memory: BatchMemory, prepare: Callable[[], None], first: int = 0, filled: int = 0
    ) -> tuple[int, int, int]:
        """Repeats `copy` until no writer overwrites rows during the copy; returns the last result.

        Raises MarlcoreError: writers overwrote every copy for 10 seconds.
        """
        lapped_since = None
        self._margin[:] = 0
        while True:
            copied = self.copy(memory, prepare, first, filled)
            if not self._validate(len(self._whole)):
                return copied
            self.lapped += 1
            # In a lane whose writer is faster than this reader, each try starts further from the oldest row.
            step = 1 + self._view.geometry.capacity // 16
            lapped = np.minimum(2 * self._margin + step, self._view.geometry.capacity // 2)
            self._margin[:] = np.where(self._whole == 0, lapped, self._margin)
            lapped_since = lapped_since or time.monotonic()
            if time.monotonic() - lapped_since > LAP_LIMIT_S:
                path = self._view.segment.path
                raise MarlcoreError(f"{path}: writers overwrote whatever was copied; use a larger capacity")
