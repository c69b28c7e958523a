"""The cursor of a trajectory queue's reader, and the room it leaves to the lanes' writers.

Only the reader writes these slots of the segment:

    slot 0         turn      batches consumed; its lowest bit selects the valid half of the other slots
                   longest   the largest add in rows, so that reader and writers never wait for each other
                   whole     the most rows in all lanes of transitions that are whole while the reader waits
    slot 1 + lane  released  rows below this ticket may be overwritten
                   two halves of position, passed, dropped, skipped: see kernels/inorder.py

The reader writes the next cursor of all lanes into the invalid half; then one store of `turn` makes it valid. So a
batch is consumed whole or not at all, wherever the reader dies. Only then does the reader release rows.

On its lane's counters line, a writer counts in `refused` the transitions that found no room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import SegmentCorrupt
from ..memory import LINE, ROOM_OFFSET, Event, LaneGeometry, NativeLanes, Segment, Words, sleep_until

__all__ = ["CURSOR_ROWS", "CursorLines", "QueueGate", "QueueGates", "ReadCursor"]

CURSOR_ROWS = 4

_TURN, _LONGEST, _WHOLE = 0, 1, 2  # words of slot 0
_RELEASED, _HALVES = 0, 1  # of a lane's slot
_REFUSED = 2  # word of a lane's counters line, after committed and reserved
_LINE_WORDS = LINE // 8
_UNLIMITED = 1 << 62  # rows

Ints = NDArray[np.int64]


class CursorLines:
    """The cursor as any process reads it."""

    def __init__(self, segment: Segment, geometry: LaneGeometry) -> None:
        self._lane_count = geometry.lanes
        self._words = Words(segment.body[geometry.slot_offset(0) : geometry.slot_offset(geometry.slots)])
        counters = segment.body[geometry.counters_offset(0) : geometry.counters_offset(geometry.lanes)]
        self._counters = Words(counters)

    def load(self) -> Ints:
        """A consistent cursor, int64 [4, lanes]."""
        while True:
            turn = self._words.load(_TURN)
            cursor = self.half(turn & 1)
            if self._words.load(_TURN) == turn:
                return cursor

    def half(self, half: int) -> Ints:
        """The content of one half of the slots, int64 [4, lanes]."""
        words = [
            [self._words.load(self._at(half, row, lane)) for lane in range(self._lane_count)]
            for row in range(CURSOR_ROWS)
        ]
        return np.array(words, np.int64)

    def longest(self) -> int:
        """The largest add in rows of a writer of one lane; 0 before the first reader."""
        return self._words.load(_LONGEST)

    def whole(self) -> int:
        """The most rows in all lanes of transitions that are whole while the reader waits."""
        return self._words.load(_WHOLE)

    def released(self, lane: int) -> int:
        """The lowest ticket that writers must not overwrite."""
        return self._words.load(_lane_word(lane) + _RELEASED)

    def refused(self, lane: int) -> int:
        """Transitions of a lane that found no room."""
        return self._counters.load(lane * _LINE_WORDS + _REFUSED)

    def refuse(self, lane: int, transitions: int) -> None:
        """For the lane's writer: counts further transitions that found no room."""
        self._counters.add(lane * _LINE_WORDS + _REFUSED, transitions)

    @staticmethod
    def _at(half: int, row: int, lane: int) -> int:
        return _lane_word(lane) + _HALVES + half * CURSOR_ROWS + row


class ReadCursor(CursorLines):
    """The cursor as its reader moves it.

    Args:
        longest, whole: see above.
    """

    def __init__(self, segment: Segment, lanes: NativeLanes, geometry: LaneGeometry, longest: int, whole: int) -> None:
        super().__init__(segment, geometry)
        self._room = Event(segment.body, ROOM_OFFSET)
        self._written = np.stack([self.half(0), self.half(1)])
        self.now = self.load()
        self._released = np.array([self.released(lane) for lane in range(lanes.count)])
        position, passed, dropped, skipped = self.now
        committed = np.array([lanes.committed(lane) for lane in range(lanes.count)])
        in_order = (0, self._released, position, committed), (0, dropped, dropped + skipped, passed, position)
        if any((low > high).any() for words in in_order for low, high in pairwise(words)):
            raise SegmentCorrupt(f"{segment.path}: the reader's counters contradict one another")
        for word, value in ((_WHOLE, 0), (_LONGEST, longest), (_WHOLE, whole)):  # never stricter than both readers
            self._words.store(word, value)
        self._room.notify()  # a writer may be waiting with an add that is too long for this reader

    def move(self, cursor: Ints) -> None:
        """Makes this the cursor, with one store."""
        half = (self._words.load(_TURN) + 1) & 1
        written = self._written[half]
        changed = np.argwhere(written != cursor).tolist()
        written[:] = -1  # if a signal interrupts this, the next move writes all words
        for row, lane in changed:
            self._words.store(self._at(half, row, lane), int(cursor[row, lane]))
        written[:] = cursor
        self.now[:] = cursor  # before the store: an interrupt between the two must not deliver rows twice
        self._words.add(_TURN, 1)

    def release(self, tickets: Ints) -> None:
        """Lets writers overwrite rows below these tickets, one per lane, and wakes the writers."""
        rows = 0
        for lane in np.flatnonzero(tickets > self._released).tolist():
            self._words.store(_lane_word(lane) + _RELEASED, int(tickets[lane]))
            rows += int(tickets[lane] - self._released[lane])
            self._released[lane] = tickets[lane]
        self._room.notify(rows)


class QueueGate:
    """The gate that a lane's writer passes before each add; see interfaces.Gate.

    Args:
        when_full: "wait", "drop_oldest" or "drop_newest".
        together: the number of lanes whose writer waits for room in all of them before it adds to any.

    Attributes:
        left: rows that may be added; a lower bound.
    """

    spare_rows = 1  # the newest row holds the number of written transitions

    def __init__(
        self,
        segment: Segment,
        lanes: NativeLanes,
        geometry: LaneGeometry,
        lane: int,
        when_full: str,
        together: int = 1,
    ) -> None:
        self._segment = segment
        self._lanes = lanes
        self._lane = lane
        self._capacity = geometry.capacity
        self._when_full = when_full
        self._together = together
        self._lines = CursorLines(segment, geometry)
        self._room = Event(segment.body, ROOM_OFFSET)
        self.left = _UNLIMITED if when_full == "drop_oldest" else 0

    def wait(
        self,
        transitions: int,
        boundaries: int,
        timeout: float | None,
        check_open: Callable[[], None],
        began: float | None = None,
    ) -> bool:
        """Waits until the rows may be added; False if they are dropped, which it counts.

        Args:
            began: when the timeout began, a time of time.monotonic(); None: now.
        """
        rows = transitions + boundaries
        if rows <= 2 and rows <= self.left:
            self.left -= rows
            return True
        if self._when_full == "drop_oldest":
            return True
        missing = partial(self._missing, rows)
        if not missing():
            return True
        if self._when_full == "drop_newest":
            self._lines.refuse(self._lane, transitions)
            return False
        deadline = None if timeout is None else (time.monotonic() if began is None else began) + timeout
        if not sleep_until(missing, self._room, deadline, check_open):
            path = self._segment.path
            raise TimeoutError(f"{path}: the reader made no room for {rows} more rows in lane {self._lane} "
                               f"in {timeout} seconds")  # fmt: skip
        return True

    def _missing(self, rows: int) -> int:
        """Rows that the reader must release before `rows` rows fit; if they fit now, reserves the room.

        Raises: ValueError: the reader cannot always make room for this many rows. SegmentCorrupt: damaged counters.
        """
        longest, whole = self._lines.longest(), self._lines.whole()
        released, committed = self._lines.released(self._lane), self._lanes.committed(self._lane)
        left = released + self._capacity - committed
        lane_count = self._lanes.count
        sane = 0 <= longest < self._capacity and 0 <= whole // lane_count < self._capacity
        if not (sane and 0 <= released <= committed and left >= 0):
            path = self._segment.path
            raise SegmentCorrupt(f"{path}: the counters of lane {self._lane} and of its reader contradict one another")
        self._check_length(rows, longest - self._crowded(whole) if longest else self._capacity - self.spare_rows)
        if rows <= left:
            self.left = left - rows
        return max(0, rows - left)

    def _crowded(self, whole: int) -> int:
        """Further rows that whole transitions may hold in a lane that stops the writer of several lanes.

        While all writers wait, each has a full lane. A writer of one lane in n meets its share of the whole rows there
        at most, the n-th part; one of k lanes may meet k shares in one of its lanes.
        """
        if self._together == 1 or self._when_full != "wait":
            return 0
        return whole * self._together // self._lanes.count - whole // self._lanes.count

    def _check_length(self, rows: int, longest: int) -> None:
        if longest < 2:
            raise ValueError(
                f"lanes: expected a queue of at least {self._capacity + 2 - longest} rows a lane for its reader's "
                f"batches and a writer of {self._together} lanes, got {self._capacity}"
            )
        if rows > longest:
            raise ValueError(
                f"reward: expected at most {longest} rows in one add, final_obs included, since the queue's "
                f"reader needs the rest of a lane's {self._capacity}, got {rows}"
            )


class QueueGates:
    """The gates of several lanes, which their one writer passes before each add; see interfaces.VectorGate."""

    def __init__(self, gates: Iterable[QueueGate]) -> None:
        self._gates = list(gates)
        self._left = np.array([gate.left for gate in self._gates], np.int64)

    def wait_each(
        self, which: Ints, boundaries: NDArray[np.bool_], timeout: float | None, check_open: Callable[[], None]
    ) -> NDArray[np.bool_] | bool:
        """Waits for room in one lane after another; a lane keeps its room meanwhile, since only this writer fills it.

        If the wait for a lane fails, the gates before it have counted rows that were not added as added. That is
        harmless: such a gate only looks at the reader's cursor earlier than it must.
        """
        left = self._left[which] - boundaries - 1
        if left.min() >= 0:
            self._left[which] = left
            return False
        began = None if timeout is None else time.monotonic()
        left_out = np.zeros(len(which), np.bool_)
        for row, (i, boundary) in enumerate(zip(which.tolist(), boundaries.tolist(), strict=True)):
            gate = self._gates[i]
            gate.left = int(self._left[i])
            left_out[row] = not gate.wait(1, boundary, timeout, check_open, began)
            self._left[i] = gate.left
        return left_out


def _lane_word(lane: int) -> int:
    return (1 + lane) * _LINE_WORDS
