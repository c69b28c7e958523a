"""The cursor of a trajectory queue's reader.

Only the reader writes these slots of the segment:

    slot 0         turn      batches consumed; its lowest bit selects the valid half of the other slots
                   longest   rows of the largest add for which the reader can always make room
                   (unused; queues in ordinary files keep their layout)
                   passed    number of transitions below the cursor, in all lanes
                   wanted    number of unread transitions that surely hold a batch, while the reader waits; or 0
                   looks     number of looks that found too few rows for a batch, after they made the room that
                             writers had asked for
    slot 1 + lane  released  rows below this ticket may be overwritten
                   two halves of position, passed, dropped, skipped: see kernels/inorder.py

In a durable queue, this is the committed cursor: `commit` moves it, and each mark records it. Only the reader, and the
word `passed`, know how far the reader has read.

The reader writes the next cursor of all lanes into the invalid half; then one store of `turn` makes it valid. So a
batch is consumed whole or not at all, wherever the reader dies. Only then does the reader release rows.

A writer has three words on its lane's counters line: `refused` counts the transitions that found no room; `asked` is
the number of rows of an add that waits for room, or 0; `room` is the ticket below which it has room (see watermark.py).
If a writer asks while the reader waits for more rows, the reader at once takes all whole rows of the writer's lane, so
that the two sides never wait for each other, however unequally the lanes are filled.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..errors import SegmentCorrupt
from ..kernels import inorder
from ..memory import LINE, ROOM_OFFSET, TICKETS, Event, LaneGeometry, NativeLanes, Segment, Words
from ..transitions import DURABLE

TURN, LONGEST, _, PASSED, WANTED, LOOKS = range(6)  # words of slot 0: see above
_RELEASED, _HALVES = 0, 1  # words of a lane's slot
_REFUSED, _ASKED, _ROOM = 2, 3, 9  # words of a lane's counters line: struct mc_counters in csrc/atomics.h
_LINE_WORDS = LINE // 8
KEPT = _HALVES + inorder.CURSOR_ROWS  # words of a slot that marks hold: `released`, and the half of turn 0

Ints = NDArray[np.int64]


class CursorLines:
    """Reads the cursor, in any process."""

    def __init__(self, segment: Segment, geometry: LaneGeometry) -> None:
        self._lane_count, self._lane_rows = geometry.lanes, geometry.capacity
        self._durable = DURABLE in segment.description
        self._words = Words(segment.body[geometry.slot_offset(0) : geometry.slot_offset(geometry.slots)])
        counters = segment.body[geometry.counters_offset(0) : geometry.counters_offset(geometry.lanes)]
        self._counters = Words(counters)
        self._rows = Event(segment.body)  # on which the reader waits for more
        self._last_asked: dict[int, int] = {}  # rows, keyed by lane; unknown before this writer's first request

    def load(self) -> Ints:
        """Returns a consistent cursor, int64 [4, lanes]."""
        while True:
            turn = self._words.load(TURN)
            cursor = self.half(turn & 1)
            if self._words.load(TURN) == turn:
                return cursor

    def half(self, half: int) -> Ints:
        words = [
            [self._words.load(self._at(half, row, lane)) for lane in range(self._lane_count)]
            for row in range(inorder.CURSOR_ROWS)
        ]
        return np.array(words, np.int64)

    def loader(self, word: int) -> Callable[[], int]:
        """Returns a function that loads a word of slot 0."""
        return self._words.loader(word)

    def word(self, word: int) -> int:
        """Returns a word of slot 0. The word outlives the reader, until a successor opens the queue."""
        return self._words.load(word)

    def released(self, lane: int) -> int:
        """Returns the lowest ticket that writers must not overwrite."""
        return self._words.load(_lane_word(lane) + _RELEASED)

    def kept(self) -> tuple[Ints, Ints]:
        """Returns what marks hold of a durable queue, see `Flushing`."""
        released = np.array([self.released(lane) for lane in range(self._lane_count)], np.int64)
        slots = np.zeros((1 + self._lane_count, KEPT), np.int64)
        slots[1:, _RELEASED], slots[1:, _HALVES:] = released, (cursor := self.load()).T
        slots[0, PASSED] = cursor[inorder.PASSED].sum()
        return slots, released + self._lane_rows

    def room(self, lane: int) -> int:
        """Returns the ticket below which a lane's writer has room, and limits a durable lane's pledges to it."""
        ticket = min(self.released(lane) + self._lane_rows, TICKETS)
        if self._durable:
            self._counters.store(lane * _LINE_WORDS + _ROOM, ticket)
        return ticket

    def refused(self, lane: int) -> int:
        return self._counters.load(lane * _LINE_WORDS + _REFUSED)

    def refuse(self, lane: int, transitions: int) -> None:
        """Counts, for the lane's writer, further transitions that found no room."""
        self._counters.add(lane * _LINE_WORDS + _REFUSED, transitions)

    def ask(self, lane: int, rows: int) -> bool:
        """For the lane's writer, asks for room for `rows` rows; 0 ends the request. Returns whether it changed."""
        if rows == self._last_asked.get(lane):
            return False
        self._counters.store(lane * _LINE_WORDS + _ASKED, rows)
        if rows:
            self._rows.notify()  # its fence keeps later loads, such as of LOOKS, behind the store
        self._last_asked[lane] = rows
        return True

    @staticmethod
    def _at(half: int, row: int, lane: int) -> int:
        return _lane_word(lane) + _HALVES + half * inorder.CURSOR_ROWS + row


class ReadCursor(CursorLines):
    """Moves the cursor, in the reader's process; the argument `longest` is stored in the word of this name."""

    def __init__(self, segment: Segment, lanes: NativeLanes, geometry: LaneGeometry, longest: int) -> None:
        super().__init__(segment, geometry)
        counters = segment.body[geometry.counters_offset(0) : geometry.counters_offset(geometry.lanes)]
        # Plain loads of whole words. The event's fences make a reader see earlier requests before it sleeps.
        self._asked: Ints = counters.view(np.int64)[_ASKED::_LINE_WORDS]
        self._capacity, self._longest = geometry.capacity, longest
        self._room = Event(segment.body, ROOM_OFFSET)
        self.now = self.load()
        self._released = np.array([self.released(lane) for lane in range(lanes.count)])
        committed = np.array([lanes.committed(lane) for lane in range(lanes.count)])
        position, passed, _, _ = self.now
        if not _ascend(0, self._released, position, committed) or not _sane(self.now):
            raise SegmentCorrupt(f"{segment.path}: the reader's counters contradict one another")
        self._words.store(LONGEST, longest)
        self._words.store(PASSED, int(passed.sum()))
        self._wanted = -1
        self.want(0)
        self._room.notify()  # a writer may be waiting with an add that is too long for this reader

    def move(self, cursor: Ints) -> None:
        """Replaces the cursor, with one store."""
        self._fill_half(cursor)
        self.now[:] = cursor  # before the store: an interrupt between the two must not deliver rows twice
        self._words.add(TURN, 1)
        self._words.store(PASSED, int(cursor[inorder.PASSED].sum()))

    def _fill_half(self, cursor: Ints) -> None:
        half = (self._words.load(TURN) + 1) & 1
        for row, values in enumerate(cursor):
            self._words.store_each(self._at(half, row, 0), _LINE_WORDS, values)

    def want(self, unread: int) -> None:
        """Lets writers add until `unread` transitions are unread; 0: until the writers' own limit is reached."""
        if unread != self._wanted:
            self._words.store(WANTED, unread)
            self._wanted = unread
            self._room.notify()

    def crowded(self, committed: Ints) -> NDArray[np.bool_]:
        """Marks the lanes, bool [lanes], in which `committed` rows leave less room than the lane's writer asked for."""
        left = self._released + self._capacity - committed
        return left < np.minimum(self._asked, self._longest)

    def count_look(self) -> None:
        self._words.add(LOOKS, 1)

    def release(self, tickets: Ints) -> None:
        """Lets writers overwrite rows below these tickets, one per lane, and wakes the writers."""
        released = np.maximum(tickets, self._released)
        self._words.store_each(_lane_word(0) + _RELEASED, _LINE_WORDS, released)
        rows = int((released - self._released).sum())
        self._released = released
        self._room.notify(rows)


class CommittedCursor(ReadCursor):
    """A durable queue's ReadCursor: reading moves only `now`; `commit` moves the cursor in shared memory."""

    def move(self, cursor: Ints) -> None:
        """Replaces `now`, and wakes writers who wait for fewer unread transitions, since no release does."""
        self.now[:] = cursor
        before, passed = self._words.load(PASSED), int(cursor[inorder.PASSED].sum())
        self._words.store(PASSED, passed)
        self._room.notify(max(0, passed - before))  # a state's counts may be wrong

    def release(self, tickets: Ints) -> None:
        """Makes no room: these rows may have to be read again."""

    def checked(self, cursor: Ints, lanes: NativeLanes) -> Ints:
        """Returns a state's cursor without rows that a power cut took. Raises ValueError if it cannot be committed."""
        if not _sane(cursor):
            raise ValueError("state: expected a reader's cursor, got counters that contradict one another")
        if not _ascend(self.load()[inorder.POSITION], cursor[inorder.POSITION]):
            raise ValueError("state: expected no state before the last commit, got an older state")
        checked = cursor.copy()
        for lane in range(lanes.count):
            if checked[inorder.POSITION, lane] > (committed := lanes.committed(lane)):
                checked[:2, lane] = committed, lanes.written(lane)
        checked[inorder.DROPPED] = np.minimum(checked[inorder.DROPPED], checked[inorder.PASSED])
        left = checked[inorder.PASSED] - checked[inorder.DROPPED]
        checked[inorder.SKIPPED] = np.minimum(checked[inorder.SKIPPED], left)
        return checked

    def commit(self, cursor: Ints, tickets: Ints) -> None:
        """Replaces the shared cursor, with one store, and lets writers overwrite rows below these tickets."""
        if (behind := self.now[inorder.POSITION] < cursor[inorder.POSITION]).any():  # of an uncommitted checkpoint
            self.move(np.where(behind, cursor, self.now))
        self._fill_half(cursor)
        self._words.add(TURN, 1)
        super().release(tickets)

    def uncommitted(self, cursor: Ints | None = None) -> Ints:
        """Counts each lane's rows that await a commit, int64 [lanes]: up to `cursor`, or by default all rows read."""
        rows: Ints = (self.now if cursor is None else cursor)[inorder.POSITION] - self._released
        return rows


def _sane(cursor: Ints) -> bool:
    position, passed, dropped, skipped = cursor
    return _ascend(0, dropped, dropped + skipped, passed, position)


def _ascend(*words: Ints | int) -> bool:
    return all(bool(np.all(low <= high)) for low, high in pairwise(words))


def _lane_word(lane: int) -> int:
    return (1 + lane) * _LINE_WORDS
