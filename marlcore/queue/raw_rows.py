"""Reads a trajectory queue's raw rows, in place of the queue's reader, and makes room for writers."""

import numpy as np

from ..closing import ClosedAfterError
from ..errors import SegmentCorrupt
from ..kernels.inorder import PASSED, POSITION
from ..memory import claim_reader
from ..transitions import LaneView, RowsReader
from .cursor import Ints, ReadCursor

_BOUNDARY_SHIFT, _BOUNDARY = 24, 4  # see csrc/api.h


class QueueRowsReader(RowsReader):
    """Reads unchanged rows in place of the queue's reader; made by `TrajectoryQueue.rows_reader`."""

    once = True

    def __init__(self, view: LaneView) -> None:
        super().__init__(view)
        self._claim = claim_reader(view.segment, view.geometry)
        self._record = np.zeros((1, view.layout.record_bytes), np.uint8)
        with ClosedAfterError(self._claim):
            longest = view.geometry.capacity - 1  # the newest row holds the number of written transitions
            self._cursor = ReadCursor(view.segment, view.native, view.geometry, longest)

    def release(self, tickets: Ints) -> None:
        """Consumes the rows below these tickets, one per lane, which makes room for others."""
        cursor = self._cursor.now.copy()
        for lane in np.flatnonzero(tickets > cursor[POSITION]).tolist():
            cursor[PASSED, lane] += (self._transitions(lane, int(tickets[lane])) - cursor[PASSED, lane]) & 0xFFFFFFFF
            cursor[POSITION, lane] = tickets[lane]
        self._cursor.move(cursor)
        self._cursor.release(cursor[POSITION])

    def close(self) -> None:
        """Lets another reader continue from here. Repeated calls are harmless."""
        self._claim.close()

    def _transitions(self, lane: int, ticket: int) -> int:
        """Returns the number of a lane's transitions below a ticket, modulo 2^32, from the row before the ticket."""
        if self._view.native.read(lane, ticket - 1, 1, self._record):
            raise SegmentCorrupt(f"{self._view.segment.path}: lane {lane} lacks row {ticket - 1}, which is unread")
        ordinal, place = map(int, self._record[0, :8].view(np.uint32))
        return ordinal + (not place >> _BOUNDARY_SHIFT & _BOUNDARY)
