"""The ingest: takes messages of rows from relays, and writes each row once to its lane in the learner's memory.

A lane's cursor is the sender's next ticket: the offset in the lane's booking plus the number of rows committed in the
lane (see bookings.py). So committing the rows of a message moves the cursor. Only a new epoch or a gap changes a
booking, before any later row is written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from threading import Condition, Lock

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_whole
from ..closing import ClosedAfterError, Closing
from ..declared import Number
from ..errors import ClosedError, Fenced, LayoutMismatch
from ..memory import AFTER, FIRST, LANE, ROWS
from ..queue import TrajectoryQueue
from ..replay import ReplayBuffer
from ..spec import TransitionSpec
from ..transitions import RowsWriter, spec_difference
from .bookings import Booking, Bookings
from .message import Message

LIMIT = 1 << 62  # of tickets
UNKNOWN = -1  # instead of a ticket: the bookings do not say which of its sender's rows the lane has
ORDER_S = 0.01  # seconds that a message may wait for an earlier one, which another thread delivers

Ints = NDArray[np.int64]


class _Sender:
    """A seat's sender: the seat's lanes and newest epoch, whether all lanes are booked to this epoch, and a lock."""

    def __init__(self, lanes: Sequence[int], bookings: Bookings) -> None:
        self.lanes = np.array(lanes)
        epochs = {bookings.load(lane).epoch for lane in lanes}
        self.epoch = max(epochs)
        self.is_open = len(epochs) == 1  # False if an ingest died between booking two lanes
        self.turn = Condition()


@dataclass
class IngestStats:
    """An ingest's counters.

    Attributes:
        rows: rows written to the target, boundary rows included.
        duplicates: rows left out because they had been written before.
        gaps: rows that a sender overwrote before sending them.
        refused: calls of `open` and `put` that raised Fenced.
    """

    rows: int = 0
    duplicates: int = 0
    gaps: int = 0
    refused: int = 0


class Ingest(Closing):
    """Receives rows from relays, and writes them to lanes of a replay or queue that have no other writer.

    Example:
        bookings = mc.cluster.Bookings.create(replay.lanes)
        ingest = mc.cluster.Ingest(replay, bookings, seats=[range(0, 8), range(8, 16)])

    Each seat has one sender at a time: the replay or queue of a node, whose rows a relay sends. If the ingest's process
    is killed, at any moment, a new ingest with the same target and bookings continues at the same row. Any thread may
    call `open` and `put`; calls for one seat run one after another.

    Attributes:
        stats: the counters, an IngestStats.
    """

    def __init__(
        self,
        target: ReplayBuffer | TrajectoryQueue,
        bookings: Bookings,
        seats: Sequence[Sequence[int]],
        *,
        holds: Callable[[int, int], bool] | None = None,
        wait_seconds: float = 0.2,
    ) -> None:
        """
        Args:
            target: the replay or queue to write to. A queue that drops its newest rows is refused.
            bookings: the bookings of the target's lanes.
            seats: for each seat, the target's lanes that take the rows of the sender's lanes 0, 1, ...
            holds: holds(seat, epoch) returns whether this epoch still has the seat's lease; by default, a seat's newest
                epoch always has it.
            wait_seconds: seconds that a `put` may wait for room in a queue, or for a limiter.

        Raises:
            LaneBusy: a lane has a living writer, such as another ingest.
            ValueError: the target lacks a lane, two seats share a lane, or the bookings have another number of lanes.
        """
        lanes = _lanes_of(seats, target.lanes)
        if bookings.lanes != target.lanes:
            raise ValueError(f"bookings: expected {target.lanes} lanes, got {bookings.lanes}")
        self.stats = IngestStats()
        self._spec = target.spec
        self._bookings = bookings
        self._holds = holds
        self._wait_seconds: float = Number(0, finite=False)("wait_seconds", wait_seconds)
        self._closed = False
        self._counting = Lock()
        self._writer: RowsWriter = target.rows_writer(lanes)
        with ClosedAfterError(self._writer):
            booked = [bookings.load(lane) for lane in range(target.lanes)]
            self._committed = self._writer.committed()
            self._next = np.array([booking.offset for booking in booked]) + self._committed
            self._seam = np.array([booking.seam for booking in booked])
            self._senders = [_Sender(lanes, bookings) for lanes in seats]

    def open(self, seat: int, epoch: int, lanes: int, spec: dict[str, object]) -> Ints:
        """Connects a seat's sender; returns the ticket at which to continue each of its lanes, int64 [lanes].

        The ticket is UNKNOWN if the lane has rows, but none of this epoch since the bookings were made: rows that the
        sender sent to an earlier ingest may be among them, as in a replay that was loaded from a save.

        Args:
            seat: the seat's number, from 0.
            epoch: the sender's number among its seat's senders, at least 1; a higher one replaces lower ones for good.
            lanes: the number of lanes of the sender's replay or queue.
            spec: the `to_dict()` of the TransitionSpec of the sender's replay or queue.

        Raises:
            Fenced: another epoch holds the seat. ValueError: the seat is unknown, or has fewer lanes than the sender.
            LayoutMismatch: the target has another spec.
        """
        sender = self._sender_of(seat)
        check_whole("epoch", epoch)
        check_whole("lanes", lanes, high=len(sender.lanes))
        theirs = TransitionSpec.from_dict(spec)
        if theirs != self._spec:
            raise LayoutMismatch(f"seat {seat}: {spec_difference(self._spec, theirs)}")
        with sender.turn:
            self._check_epoch(sender, seat, epoch)
            sender.epoch, sender.is_open = epoch, False
            for lane in sender.lanes.tolist():
                booking = self._bookings.load(lane)
                if booking.epoch != epoch:
                    committed = int(self._committed[lane])
                    self._book(lane, Booking(epoch, -committed, committed, booking.lost))
            sender.is_open = True
            own = sender.lanes[:lanes]
            cursor: Ints = self._next[own]
            cursor[(cursor == 0) & (self._committed[own] > 0)] = UNKNOWN
            return cursor

    def put(self, message: NDArray[np.uint8]) -> bool:
        """Writes those rows of a message that are not written yet; see message.py for the format.

        Returns: True if all rows are written now. False if there was no room for some rows within `wait_seconds`, or if
            an earlier message is missing; the relay then calls `open` again, and continues at the returned tickets.

        Raises: Fenced: another epoch holds the seat. ValueError: the message is malformed. No row is then written.
        """
        sent = Message.of(message)
        sender = self._sender_of(sent.seat)
        lane, after, first, _ = sent.spans.T
        in_order = (np.diff(lane, prepend=-1, append=len(sender.lanes)) > 0).all()
        if not in_order or not ((after >= 0) & (after <= first) & (first < LIMIT)).all():
            raise ValueError(f"message: expected spans of lanes 0 to {len(sender.lanes) - 1}, got {brief(sent.spans)}")
        offsets, total = self._writer.place(sent.spans, sent.row_bytes)
        if total != sent.row_bytes:
            raise ValueError(f"message: expected {total} bytes of rows in its spans, got {sent.row_bytes}")
        with sender.turn:
            if not sender.turn.wait_for(lambda: not self._is_early(sender, sent), ORDER_S):
                return False
            self._check_epoch(sender, sent.seat, sent.epoch)
            whole = self._take(sender, sent, offsets)
            sender.turn.notify_all()
        return whole

    def close(self) -> None:
        """Waits until no other call runs, then releases the lanes. Repeated calls are harmless."""
        self._closed = True
        for sender in self._senders:
            with sender.turn:
                pass
        self._writer.close()

    def _take(self, sender: _Sender, sent: Message, offsets: Ints) -> bool:
        """Writes the new rows of a message; returns whether all of its rows are written now."""
        spans, lanes = sent.spans, sender.lanes[sent.spans[:, LANE]]
        skip = np.clip(self._next[lanes] - spans[:, FIRST], 0, spans[:, ROWS])
        take = spans[:, ROWS] - skip
        new = np.flatnonzero(take)
        for i in np.flatnonzero((take > 0) & (spans[:, FIRST] > self._next[lanes])).tolist():
            self._skip(int(lanes[i]), int(spans[i, FIRST]))
        seam = self._seam[lanes] == self._committed[lanes]
        parts = np.stack([lanes, offsets, spans[:, ROWS], skip, take, seam], axis=1)[new]
        if not len(parts):
            self._count(duplicates=int(skip.sum()))
            return True
        try:
            written = self._writer.append(parts, sent.plain_rows(), self._wait_seconds)
        except BaseException:  # some rows may have been written
            committed = self._writer.committed()
            self._next[lanes] += committed[lanes] - self._committed[lanes]
            self._committed[lanes] = committed[lanes]
            raise
        self._next[lanes[new]] += written
        self._committed[lanes[new]] += written
        self._count(rows=int(written.sum()), duplicates=int(skip.sum()))
        return bool((written == take[new]).all())

    def _is_early(self, sender: _Sender, sent: Message) -> bool:
        """Returns whether an earlier message is missing, or the ingest does not know the message's epoch yet."""
        if sent.epoch != sender.epoch or not sender.is_open:
            return sent.epoch >= sender.epoch
        return bool((sent.spans[:, AFTER] > self._next[sender.lanes[sent.spans[:, LANE]]]).any())

    def _check_epoch(self, sender: _Sender, seat: int, epoch: int) -> None:
        if epoch < sender.epoch:
            self._refuse(f"seat {seat}: expected the epoch {sender.epoch}, got {epoch}")
        if self._holds is not None and not self._holds(seat, epoch):
            self._refuse(f"seat {seat}: epoch {epoch} has lost its lease")
        if self._closed:
            raise ClosedError("the ingest was closed")

    def _refuse(self, why: str) -> None:
        self._count(refused=1)
        raise Fenced(why)

    def _skip(self, lane: int, ticket: int) -> None:
        """Skips rows that the sender has lost: notes a seam; the lane then continues at the sender's `ticket`."""
        booking, lost = self._bookings.load(lane), ticket - int(self._next[lane])
        committed = int(self._committed[lane])
        self._book(lane, replace(booking, offset=ticket - committed, seam=committed, lost=booking.lost + lost))
        self._count(gaps=lost)

    def _book(self, lane: int, booking: Booking) -> None:
        self._bookings.store(lane, booking)
        self._next[lane] = booking.offset + self._committed[lane]
        self._seam[lane] = booking.seam

    def _count(self, **amounts: int) -> None:
        with self._counting:
            for name, amount in amounts.items():
                setattr(self.stats, name, getattr(self.stats, name) + amount)

    def _sender_of(self, seat: int) -> _Sender:
        if not 0 <= seat < len(self._senders):
            raise ValueError(f"seat: expected 0 to {len(self._senders) - 1}, got {brief(seat)}")
        return self._senders[seat]


def _lanes_of(seats: Sequence[Sequence[int]], lanes: int) -> list[int]:
    """Returns all seats' lanes. Raises ValueError if a seat has no lane, or if a lane is repeated or does not exist."""
    chosen = [lane for seat in seats for lane in seat]
    if not seats or not all(map(len, seats)) or len({*chosen}) < len(chosen) or not {*chosen} <= {*range(lanes)}:
        raise ValueError(f"seats: expected distinct lanes from 0 to {lanes - 1}, got {brief(seats)}")
    return chosen
