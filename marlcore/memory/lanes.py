"""Lanes in a segment: the places of their counters and columns, and the right to write to them.

This right is a lock on one byte of the segment's file, held until the writer is closed or its process dies; the lock of
an append is held only during the append. In a segment of L lanes, the locked bytes are:

1 + lane           a lane's writer: exclusive, or shared by all writers of a shared lane
1 + L + lane       one append to a shared lane
1 + 2 L + slot     a sampler's slot in a replay with a limiter, or (slot 0) a trajectory queue's reader
1 + 2 L + slots    a process that clears a replay
2 + 2 L + slots    a durable replay's flusher; each named sampler locks a later byte, which its name determines
"""

import time
import zlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..closing import ClosedAfterError
from ..errors import LaneBusy
from .files import File
from .native import LINE, MAX_COLUMNS, NativeLanes
from .segment import Segment
from .waiting import check_interruption

ROOM_OFFSET = LINE
_PAUSE_S = 1e-3


@dataclass(frozen=True)
class LaneGeometry:
    """Lanes of one shape, laid out in a segment's body.

        event line | room line | counters of lane 0 | counters of lane 1 | ... | slots | column 0 | column 1 | ...

    A column holds all rows of lane 0, then all rows of lane 1, and so on. Readers wait for rows on the event line;
    writers wait for readers on the room line. Each slot is a line that one reader writes.
    """

    lanes: int
    capacity: int  # rows of each lane
    columns: tuple[int, ...]  # bytes of a row in each column; in column 0 a multiple of 8
    every: tuple[int, ...] = ()  # for each column, how many tickets share a row; 1 by default, divides `capacity`
    slots: int = 0  # lines for the readers that writers wait for
    first: int = 0  # the number of lane 0 among all lanes of the segment
    total: int = 0  # lanes of the segment; by default `lanes`
    kept: int = 1  # how many first words of each slot a mark records, see watermark.py

    def __post_init__(self) -> None:
        if not self.every:
            object.__setattr__(self, "every", (1,) * len(self.columns))
        if not self.total:
            object.__setattr__(self, "total", self.lanes)
        if len(self.columns) > MAX_COLUMNS:
            raise ValueError(f"columns: expected at most {MAX_COLUMNS} large fields, got {len(self.columns)}")

    def stride(self, column: int) -> int:
        return -(-self.columns[column] // 8) * 8

    def counters_offset(self, lane: int) -> int:
        return LINE * (2 + self.first + lane)

    def record_offset(self, lane: int, ticket: int) -> int:
        """Returns the offset in the body, in bytes, of a ticket's record."""
        return self.column_offset(0) + (lane * self.capacity + ticket % self.capacity) * self.stride(0)

    def slot_offset(self, slot: int) -> int:
        return LINE * (2 + self.total + slot)

    def column_offset(self, column: int) -> int:
        """Returns the offset in the body, in bytes, of the column's first row of lane 0."""
        return self._columns_end(column) + self.first * self.rows(column) * self.stride(column)

    def _columns_end(self, columns: int) -> int:
        sizes = (self.total * self.rows(k) * self.stride(k) for k in range(columns))
        return self.slot_offset(self.slots) + sum(-(-size // LINE) * LINE for size in sizes)

    def rows(self, column: int) -> int:
        return self.capacity // self.every[column]

    @property
    def nbytes(self) -> int:
        return self._columns_end(len(self.columns))

    @property
    def whole(self) -> "LaneGeometry":
        return replace(self, lanes=self.total, first=0)

    def part(self, lanes: range) -> "LaneGeometry":
        """Returns the geometry of some consecutive lanes, at their places in the segment."""
        return replace(self, lanes=len(lanes), first=lanes.start)

    def bind(self, body: NDArray[np.uint8]) -> NativeLanes:
        """Returns the lanes in a mapped body. Raises ValueError if the body is too short."""
        if self.nbytes > len(body):
            raise ValueError(f"body: expected {self.nbytes} bytes of lanes, got {len(body)}")
        return NativeLanes(body, self)


def writer_lock(lane: int) -> int:
    return 1 + lane


def add_lock(lanes: int, lane: int) -> int:
    return 1 + lanes + lane


def slot_lock(lanes: int, slot: int) -> int:
    return 1 + 2 * lanes + slot


def flusher_lock(geometry: LaneGeometry) -> int:
    return slot_lock(geometry.total, geometry.slots) + 1


def name_lock(geometry: LaneGeometry, name: str) -> int:
    return flusher_lock(geometry) + 1 + zlib.crc32(name.encode())


def claim(segment: Segment, lanes: NativeLanes, *numbers: int, shared: bool = False) -> File:
    """Locks all of these lanes for this process, or none, until the returned file is closed. Shared locks coexist.

    Raises LaneBusy if a living writer excludes this one, SegmentCorrupt if a lane's counters contradict each other.
    """
    held = None
    for lane in numbers:
        held = segment.lock(writer_lock(lane), exclusive=not shared, beside=held)
        if held is None:
            raise LaneBusy(f"{segment.path}: lane {lane} has a living writer" + " of its own" * shared)
    assert held is not None
    with ClosedAfterError(held):
        for lane in numbers:
            lanes.check(lane)
        return held


def claim_clearing(segment: Segment, geometry: LaneGeometry) -> File:
    """Waits for the right to clear the lanes; one process at a time holds it, briefly."""
    while (held := segment.lock(slot_lock(geometry.lanes, geometry.slots))) is None:
        check_interruption()
        time.sleep(_PAUSE_S)
    return held


def claim_reader(segment: Segment, geometry: LaneGeometry) -> File:
    """Takes a trajectory queue's reading end for this process. Raises LaneBusy if the queue has a living reader."""
    held = segment.lock(slot_lock(geometry.lanes, 0))
    if held is None:
        raise LaneBusy(f"{segment.path}: the queue has a living reader")
    return held
