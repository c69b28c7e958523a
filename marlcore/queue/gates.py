"""The gates that a trajectory queue's writers pass before each add: they wait for room, or drop rows that find none."""

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ..checks import deadline_of
from ..errors import Deadlocked, SegmentCorrupt, TimedOut
from ..memory import ROOM_OFFSET, Check, Event, sleep_until, slot_lock
from ..transitions import DURABLE, Gate, LaneView, share_of
from .cursor import LONGEST, LOOKS, PASSED, WANTED, CursorLines

_UNLIMITED = 1 << 62  # rows

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def _alone(view: LaneView) -> str:
    if view.segment.is_locked(slot_lock(view.geometry.lanes, 0)):
        return ""
    return f"{view.segment.path}: a writer waits for the queue's reader, and no process has it"


class UnreadLimit:
    """Makes writers wait while `most` transitions are unread; a reader that waits for more can raise this limit."""

    def __init__(self, view: LaneView, lines: CursorLines, most: int) -> None:
        self._view = view
        self._passed, self._wanted = lines.loader(PASSED), lines.loader(WANTED)
        self._inserted = view.native.inserted
        self._most = most
        self._room = Event(view.segment.body, ROOM_OFFSET)

    def wait(self, timeout: float | None, check_open: Check) -> float | None:
        """Waits until an add may begin; returns the add's deadline, None if there was no wait. Raises TimeoutError."""
        if self.left() > 0:
            return None
        deadline = deadline_of(timeout)
        if not sleep_until(self._missing, self._room, deadline, check_open, partial(_alone, self._view)):
            path = self._view.segment.path
            raise TimedOut(f"{path}: {self._most} transitions are still unread after {timeout} seconds")
        return deadline

    def left(self) -> int:
        """Returns the number of transitions that writers may add now; 0 or less if they must wait."""
        passed = self._passed()  # read first: changes between the two loads can only delay this writer
        unread = self._inserted() - passed
        return max(self._most, self._wanted()) - unread

    def _missing(self) -> int:
        """Returns the number of transitions that the reader must take before a writer may add."""
        return max(0, 1 - self.left())


class LaneGate:
    """The gate of one lane, which waits for room in this lane."""

    def __init__(self, view: LaneView, lane: int, when_full: str, lines: CursorLines) -> None:
        self._view = view
        self._lane = lane
        self._capacity = view.geometry.capacity
        self._when_full = when_full
        self._lines = lines
        self._room = Event(view.segment.body, ROOM_OFFSET)
        self._looks = 0  # the reader's looks when this gate last asked it
        self.left = _UNLIMITED if when_full == "drop_oldest" else 0  # a lower bound of the rows that may be added

    def wait(
        self, transitions: int, boundaries: int, timeout: float | None, check_open: Check, deadline: float | None = None
    ) -> bool:
        """Waits for room until the deadline, by default `timeout` s from now; returns False if the rows are dropped.

        Dropped rows are counted. `check_open`, which is called in waits and before a drop, raises the errors of an add.
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
            check_open()
            self._lines.refuse(self._lane, transitions)
            return False
        deadline = deadline_of(timeout) if deadline is None else deadline
        if not sleep_until(missing, self._room, deadline, check_open, partial(_alone, self._view)):
            late = f"the reader made no room for {rows} more rows in lane {self._lane} in {timeout} seconds"
            raise TimedOut(f"{self._view.segment.path}: {late}")
        return True

    def _missing(self, rows: int) -> int:
        """Returns how many rows the reader must release before `rows` rows fit; if 0, reserves their room.

        Raises ValueError if the reader cannot always make room for this many rows, SegmentCorrupt if counters are
        damaged.
        """
        # Loaded first, so that rows released by these looks count below.
        looks, longest = self._lines.word(LOOKS), self._lines.word(LONGEST)
        room, committed = self._lines.room(self._lane), self._view.native.committed(self._lane)
        left = room - committed
        if not (0 <= longest < self._capacity <= room and 0 <= left <= self._capacity):
            path = self._view.segment.path
            raise SegmentCorrupt(f"{path}: the counters of lane {self._lane} and of its reader contradict one another")
        if rows > (most := longest or self._capacity - 1):
            why = f"since the queue's reader needs the rest of a lane's {self._capacity}"
            raise ValueError(f"reward: expected at most {most} rows in one add, final_obs included, {why}, got {rows}")
        if rows <= left:
            self.left = left - rows
        if self._when_full == "wait":
            self._ask(rows if rows > left else 0, looks)
        return max(0, rows - left)

    def _ask(self, rows: int, looks: int) -> None:
        """Asks the reader for room for `rows` rows; `rows` is 0 if there is room.

        Raises Deadlocked if, since the first such request, the reader twice had too few rows for a batch and made no
        room.
        """
        if self._lines.ask(self._lane, rows):
            self._looks = self._lines.word(LOOKS)  # a look that had begun by now does not count
        elif rows and looks - self._looks > 1:
            ours = f"the writer of lane {self._lane} waits for room for {rows} rows"
            theirs = "the reader makes room only after it gets more rows"
            raise Deadlocked(f"{self._view.segment.path}: {ours}, but {theirs}")


class QueueGates:
    """The gates of a writer's lanes: `wait` is a transitions.Gate, `wait_each` a VectorGate, `room_for` a RowsGate."""

    def __init__(self, view: LaneView, lanes: list[int], when_full: str, unread: UnreadLimit | None) -> None:
        self._view, self._when_full, self._unread = view, when_full, unread
        self._lines, self._durable = CursorLines(view.segment, view.geometry), DURABLE in view.segment.description
        self._gates = [LaneGate(view, lane, when_full, self._lines) for lane in lanes]
        for lane in lanes:
            self._lines.room(lane)  # before rows are checked, which happens before they wait
        self._left = np.array([gate.left for gate in self._gates], np.int64)
        # Rows for which every lane surely has room, and those that lanes got at most since `_left` was up to date
        self._sure, self._given = int(self._left.min()), 0

    @property
    def wait(self) -> Gate:
        """The gate of a writer of one lane, chosen so that an add makes the fewest calls."""
        return self._gates[0].wait if self._unread is None else self._wait_for_both

    def _wait_for_both(self, transitions: int, boundaries: int, timeout: float | None, check_open: Check) -> bool:
        """Waits until few enough transitions are unread, then for room in the only lane, like `LaneGate.wait`."""
        assert self._unread is not None
        deadline = self._unread.wait(timeout, check_open)
        return self._gates[0].wait(transitions, boundaries, timeout, check_open, deadline)

    def wait_each(self, which: Ints, boundaries: Flags, timeout: float | None, check_open: Check) -> Flags | bool:
        """Waits for room in one lane after another; the room in earlier lanes stays, since only this writer fills them.

        If the wait for a lane fails, earlier gates have counted their rows as added, although nothing was written. That
        is harmless: such a gate only looks at the reader's cursor earlier than it must.

        Returns: bool [k], the rows that are dropped; or False, if none is.
        """
        unread = self._unread
        deadline = unread.wait(timeout, check_open) if unread is not None and unread.left() <= 0 else None
        rows = 2 if 1 in boundaries.tobytes() else 1  # in a quarter of the time of `np.count_nonzero`
        if rows <= self._sure:
            self._sure -= rows
            self._given += rows
            return False
        self._left -= self._given
        self._sure = self._given = 0
        if len(which) < len(self._gates):  # the lanes that get no rows say nothing of the others
            left = self._left[which] - boundaries - 1
            if left.min(initial=0) >= 0:
                self._left[which] = left
                return False
        deadline = deadline_of(timeout) if deadline is None else deadline
        left_out = np.zeros(len(which), np.bool_)
        for row, (i, boundary) in enumerate(zip(which.tolist(), boundaries.tolist(), strict=True)):
            gate = self._gates[i]
            gate.left = 0 if self._durable else int(self._left[i])  # so that lanes pledge all their room at once
            left_out[row] = not gate.wait(1, boundary, timeout, check_open, deadline)
            self._left[i] = gate.left
        self._sure = int(self._left.min())
        return left_out

    @property
    def room_for(self) -> Callable[[Ints, Ints], Ints] | None:
        """The gate of a writer of raw rows; None if every row finds room. Raises ValueError for "drop_newest"."""
        if self._when_full == "drop_newest":
            raise ValueError("when_full: expected 'wait' or 'drop_oldest' for rows from elsewhere, got 'drop_newest'")
        return self._room_for if self._when_full == "wait" else None

    def _room_for(self, lanes: Ints, wanted: Ints) -> Ints:
        """Returns the raw rows for which each lane, and all lanes together, have room."""
        numbers = lanes.tolist()
        free = [self._lines.room(lane) - self._view.native.committed(lane) for lane in numbers]
        for lane, room in zip(numbers, free, strict=True):
            self._lines.ask(lane, int(room <= 0))
        allowed = np.clip(wanted, 0, free)
        return allowed if self._unread is None else share_of(self._unread.left(), allowed)
