"""Reads raw rows, boundary rows included, from one replay or queue, and writes them to another of the same spec.

Rows keep their values, flags and policy versions. Their places in episodes follow the target lane's last row.
"""

import time
from collections.abc import Callable
from contextlib import nullcontext
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from ..closing import Closing
from ..errors import ClosedError
from ..memory import ROOM_OFFSET, SEAM, SKIP, TAKE, Event, File, NativeRows, sleep_until
from .layout import LaneView

PLACE_OFFSET, AGE = 4, 0xFFFFFF  # see csrc/api.h

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]
# Takes lanes and the rows wanted for each, int64 [n]; returns the rows for which there is room now, int64 [n].
RowsGate = Callable[[Ints, Ints], Ints]


class RowsReader(Closing):
    """Reads committed rows; made by the `rows_reader` of a replay or queue.

    Attributes:
        lo, hi: for each lane, the range [lo, hi) of tickets that `look` found, int64 [lanes].
        lane_rows: the number of rows that a lane holds.
        row_bytes: the approximate bytes of a row in a message.
        once: whether `release` consumes rows, so that no later reader gets them.
    """

    once = False

    def __init__(self, view: LaneView) -> None:
        self._view = view
        self._native = NativeRows(view.native)
        self.lo, self.hi = np.zeros((2, view.geometry.lanes), np.int64)
        self.look = view.native.windows(self.lo, self.hi)
        layout, self.lane_rows = view.layout, view.geometry.capacity
        self.row_bytes = sum(size / every for size, every in zip(layout.columns, layout.every, strict=True))
        self.place = self._native.place
        self.read = self._native.read

    def first_to_send(self, lane: int, ticket: int) -> int:
        """Returns the first ticket, from `ticket` on, that may be sent after lost rows, or the end of the lane.

        If recurrent states are stored, that row begins an episode, since states match only rows of whole episodes.
        """
        if self._view.spec.state_every == 1 or ticket >= self.hi[lane]:
            return ticket
        records = np.zeros((int(self.hi[lane]) - ticket, self._view.layout.record_bytes), np.uint8)
        if self._view.native.read(lane, ticket, len(records), records):
            return ticket  # the writer has overwritten this row, and will overwrite the span
        place = np.ascontiguousarray(records[:, PLACE_OFFSET : PLACE_OFFSET + 4]).view(np.uint32)[:, 0]
        return ticket + int(np.argmax(np.append(place & AGE, 0) == 0))

    def release(self, tickets: Ints) -> None:
        """Lets waiting writers overwrite rows below these tickets, one per lane."""

    def close(self) -> None:
        """Lets another reader take the place of this one."""


class RowsWriter(Closing):
    """Writes raw rows to lanes that it holds; made by the `rows_writer` of a replay or queue.

    Several threads may use it at once, if each writes to lanes of its own.
    """

    def __init__(self, view: LaneView, claim: File, gate: RowsGate | None) -> None:
        self._view = view
        self._claim = claim
        self._gate = gate
        self._native = NativeRows(view.native)
        self._room = Event(view.segment.body, ROOM_OFFSET)
        self._most = max(1, view.geometry.capacity - 1)  # rows of one append; the newest holds the lane's counts
        self._pass = nullcontext() if gate is None else Lock()  # held from the look for room until that is filled
        self.place, self.committed = self._native.place, self._native.committed

    def append(self, parts: Ints, source: Bytes, timeout: float) -> Ints:
        """Writes as many rows of a message's spans, `source`, as find room within `timeout` seconds.

        `parts`, int64 [n, 6], are the parts of the spans to write, each for another lane: see `mc_part` in csrc/api.h.
        Returns: the rows written of each part, int64 [n].
        """
        self.check_open()
        written = np.zeros(len(parts), np.int64)
        left, deadline = parts.copy(), time.monotonic() + timeout
        while True:
            written += self._append_some(left, source)
            if not left[:, TAKE].any():
                return written
            if not sleep_until(lambda: int(not self._allowed(left).any()), self._room, deadline, self.check_open):
                return written

    def check_open(self) -> None:
        """Raises ClosedError after `close` of this writer or of its target, StaleHandle in a forked child."""
        self._view.segment.check_open()
        if self._claim.fd < 0:
            raise ClosedError(f"{self._view.segment.path}: the rows' writer was closed, or belongs to a parent process")

    def close(self) -> None:
        """Gives the lanes back; no thread may be inside `append`."""
        self._claim.close()

    def _append_some(self, left: Ints, source: Bytes) -> Ints:
        """Writes the rows that find room now, and removes them from `left`; returns how many of each part."""
        with self._pass:
            allowed = self._allowed(left)
            now = left[allowed > 0]
            now[:, TAKE] = allowed[allowed > 0]
            if len(now):
                self._native.append(now, source)
        left[:, SKIP] += allowed
        left[:, TAKE] -= allowed
        left[allowed > 0, SEAM] = 0
        return allowed

    def _allowed(self, left: Ints) -> Ints:
        wanted = np.minimum(left[:, TAKE], self._most)
        return wanted if self._gate is None else self._gate(left[:, 0], wanted)


def share_of(room: int, wanted: Ints) -> Ints:
    """Splits `room` rows over the lanes, each of which gets at most its `wanted` rows; earlier lanes go first."""
    share: Ints = np.clip(room - (np.cumsum(wanted) - wanted), 0, wanted)
    return share
