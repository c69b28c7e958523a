"""Opens a durable segment: after the machine has stopped, keeps only the rows that are whole on disk."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ..closing import ClosedAfterError
from ..errors import SegmentCorrupt
from .files import File
from .lanes import ROOM_OFFSET, LaneGeometry, flusher_lock
from .native import FLOORS, LINE
from .segment import Segment
from .watermark import NEWEST, PROMISED, WATERMARK, Mark, Marks, boot_id

_PAUSE_S = 1e-3
_COMMITTED, _RESERVED, _PLEDGED, _UPHELD = 0, 1, 4, 5  # words of a lane's counters line: struct mc_counters
_FLOORS, _KEPT = slice(FLOORS, FLOORS + 2), slice(10, 12)
_NO_BOOT = bytes(16)

Bytes = NDArray[np.uint8]
Seal = Callable[[int], int]  # maps a row's first word to that of an empty row, which may take its place


@dataclass(frozen=True)
class Recovered:
    """The rows that a durable replay or queue kept and lost when the machine stopped, in all lanes together.

    Attributes:
        rows: rows kept; each is whole.
        cut: rows lost after the last watermark, as far as the disk knows of them.
        overwritten: older rows lost because newer ones may have been written in their places.
    """

    rows: int
    cut: int
    overwritten: int


def take_flushing(
    segment: Segment, geometry: LaneGeometry, marks: Marks, seal: Seal
) -> tuple[File | None, Recovered | None]:
    """Opens a durable segment; returns the flusher's lock if no living process holds it, and what was recovered.

    If the marks are of another boot, the first process that opens the segment recovers it, and the others wait for
    that. Raises SegmentCorrupt if the marks are damaged, or the segment is read-only and not yet recovered.
    """
    writable = segment.body.flags.writeable
    while (mark := marks.newest()).boot != boot_id():
        if not writable:
            raise SegmentCorrupt(f"{segment.path}: expected a segment recovered by `attach`, got an unrecovered one")
        held = segment.lock(flusher_lock(geometry))
        if held is not None:
            with ClosedAfterError(held):
                mark = marks.newest()  # another process may have recovered it just now
                if mark.boot == boot_id():
                    return held, None
                return held, _recover(segment.body, geometry, marks, mark, held, seal)
        time.sleep(_PAUSE_S)
    return segment.lock(flusher_lock(geometry)) if writable else None, None


def _recover(body: Bytes, geometry: LaneGeometry, marks: Marks, mark: Mark, held: File, seal: Seal) -> Recovered:
    """Restores each lane's counters from the last mark; a mark of the present boot then lets other processes in.

    Whoever stops this before that mark is whole, the next process does all of it anew, with the same rows.
    """
    first, end = geometry.counters_offset(0), geometry.counters_offset(geometry.lanes)
    counters = body[first:end].view(np.int64).reshape(-1, LINE // 8)
    whole, promised = mark.lanes[WATERMARK], np.maximum(mark.lanes[PROMISED], counters[:, _PLEDGED])
    known = np.clip(counters[:, _COMMITTED], whole, promised)
    # A lane whose rows are all in doubt keeps one empty row, which holds the count of rows ever written.
    reserved = np.minimum(promised, np.where(whole > 0, whole - 1 + geometry.capacity, 0))
    newest = mark.lanes[NEWEST].copy()
    for lane in np.flatnonzero((reserved < promised) & (whole > 0)).tolist():
        newest[lane] = seal(int(newest[lane]))
        _put_hollow_row(body, geometry, lane, int(whole[lane]) - 1, newest[lane])
    body[: ROOM_OFFSET + LINE] = 0  # announcements of processes that slept
    counters[:, _COMMITTED], counters[:, _RESERVED] = whole, reserved
    counters[:, _KEPT] = 0  # of tickets that will come again
    # A clear may have reached the disk before its rows.
    counters[:, _FLOORS] = np.minimum(counters[:, _FLOORS], whole[:, None])
    slots = body[geometry.slot_offset(0) : geometry.slot_offset(geometry.slots)].view(np.int64).reshape(-1, LINE // 8)
    slots[:] = 0
    slots[:, : geometry.kept] = mark.slots
    held.sync()
    # The pledges stay until a mark that needs none is on disk: the old one does if the machine stops again.
    lanes = np.stack([whole, np.where(whole > 0, reserved, geometry.capacity), newest])
    now = Mark(mark.number + 1, _NO_BOOT, lanes, mark.slots)
    marks.write(now)
    held.sync()
    counters[:, [_PLEDGED, _UPHELD]] = 0
    marks.publish(now)
    marks.fail(False)
    held.sync()  # orders these words before the mark by which others enter
    marks.write(replace(now, number=now.number + 1, boot=boot_id()))  # which the flusher syncs before its first
    held_before, rows = np.minimum(whole, geometry.capacity), np.clip(whole + geometry.capacity - promised, 0, whole)
    return Recovered(int(rows.sum()), int((known - whole).sum()), int((held_before - rows).sum()))


def _put_hollow_row(body: Bytes, geometry: LaneGeometry, lane: int, ticket: int, word: int) -> None:
    begin = geometry.record_offset(lane, ticket)
    row = body[begin : begin + geometry.stride(0)]
    row[:] = 0
    row[:8].view(np.int64)[0] = word
