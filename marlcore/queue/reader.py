"""The readers of a trajectory queue, which consume whole transitions or unrolls in order, or raw rows."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole, deadline_of, state_array
from ..closing import ClosedAfterError, Closing
from ..errors import ClosedError, Deadlocked, NotEnoughData, SegmentCorrupt, TimedOut
from ..fixed import fixed
from ..kernels import inorder, rows
from ..memory import (
    BOUNDARY,
    Inside,
    at_first_use,
    claim_reader,
    close_when_alone,
    invalidate_after_fork,
    one_thread,
    sleep_until,
)
from ..spec import Sequence
from ..transitions import DURABLE, Batch, BatchMemory, InOrder, LaneView, RowsReader, Window
from .cursor import CommittedCursor, Ints, ReadCursor


@dataclass(slots=True)
class ReaderStats:
    """A reader's counters.

    Attributes:
        read: transitions taken, perhaps some for the next batch.
        dropped: transitions that were overwritten before they, or the frames of their stack, were read.
        skipped: transitions that no batch could hold; see `TrajectoryQueue.skipped`.
        lapped: how often a batch was copied again, because a writer overwrote its rows.
        waited: seconds slept for data.
    """

    read: int = 0
    dropped: int = 0
    skipped: int = 0
    lapped: int = 0
    waited: float = 0.0


@dataclass(slots=True)
class _Begun:
    """The next batch, for which the reader took rows early, or which an interrupted read took whole."""

    memory: BatchMemory | None = None
    filled: int = 0  # transitions or unrolls so far
    before: Ints | None = None  # the cursor before the first of them
    first: int = 0  # the lane that gets a row more where shares cannot be equal, modulo the number of lanes
    told: bool = True  # whether other processes know of the reader's last move


def lane_rows_for(
    batch_size: int, lanes: int, together: int = 1, length: int | None = None, stack: int = 1, state_every: int = 1
) -> int:
    """Returns how many rows a lane needs so that a writer of `together` lanes seldom waits for the reader.

    One lane then has room for the writer's whole share of a batch, with as many boundary rows. `state_every` is the
    interval at which the spec stores recurrent states; n_step is 1.
    """
    still_needed = max(stack, state_every if length is not None else 1) - 1
    return 2 + still_needed + (length or 1) + (batch_size - 1) * ((length or 1) + 1) * together // lanes


def checked_window(
    lanes: LaneView, batch_size: int, length: int | None, stack: int, n_step: int, gamma: float, pad: str
) -> Window:
    """Returns a reader's window from the options of `TrajectoryQueue.reader`; raises the same errors."""
    spec, lane_rows = lanes.spec, lanes.geometry.capacity
    check_whole("batch_size", batch_size)
    if length is not None:
        check_whole("length", length)
        if spec.next_obs:
            raise ValueError("length: expected None, since rows of a spec with next_obs do not follow one another")
        if length % spec.state_every:
            interval = f"{spec.state_every} rows from one stored state to the next"
            raise ValueError(f"length: expected a multiple of the {interval}, got {length}")
    window = Window(stack, n_step, gamma, pad, None if length is None else Sequence(length, period=spec.state_every))
    spare = _longest_add(lanes, window)
    if spare < 2:
        least = f"{lane_rows + 2 - spare} rows a lane for its stack {stack}, n_step {n_step} and length {length}"
        raise ValueError(f"reader: expected a queue of at least {least}, got {lane_rows}")
    window.check(spec, lane_rows)
    return window


def _longest_add(lanes: LaneView, window: Window) -> int:
    """Returns the size of the largest add that fits when the reader has taken all whole transitions or unrolls.

    The lane then holds an unfinished transition or unroll, and the rows that a stack or a stored state still needs. If
    it is durable, up to half of its rows await a commit (see `commit_due`), and up to a quarter began a batch.
    """
    still_needed = max(window.stack, window.period) - 1
    longest = lanes.geometry.capacity + 1 - still_needed - (window.length or 1) - window.n_step
    return min(longest, max(2, lanes.geometry.capacity // 4)) if DURABLE in lanes.segment.description else longest


@fixed()
class TrajectoryReader(Closing):
    """Reads a queue in order; made by `TrajectoryQueue.reader`. For one thread at a time.

    Example:
        with queue.reader(batch_size=256, n_step=3) as reader:
            while training:
                batch = reader.read(timeout=60.0)

    Attributes:
        batch_size: transitions or unrolls of a batch, unless `read` says how many.
        stats: transitions read, dropped and skipped, and the time waited.
    """

    def __init__(self, lanes: LaneView, window: Window, batch_size: int) -> None:
        self.stats = ReaderStats()
        self._closed = False
        self._inside: Inside = {}
        self._view = lanes
        self._window = window
        self.batch_size = self._size = int(batch_size)  # the latter: of the next batch
        self._rows = InOrder(lanes, window, self.batch_size)
        self._read_plan, self._next, self._settled = self._rows.plan, self._rows.next, self._rows.settled
        self._take_end()
        with ClosedAfterError(self._claim):
            # Compiles or loads the kernel now instead of in the first read; consumes nothing.
            self._rows.copy(self._read_plan.memory(), self._prepare)
        invalidate_after_fork(self)

    def _take_end_anew(self) -> None:
        self._claim.close()  # of an attempt that an interrupt ended
        self._take_end()

    def _take_end(self) -> None:
        """Takes the queue's reading end, and continues at its cursor. Raises LaneBusy if the queue has a reader."""
        self.check_open()
        view = self._view
        self._begun = _Begun()
        self._enough = 0  # the number of rows, committed to all lanes, that the next batch needs at least
        self._stuck = False  # whether a lane stayed crowded after a look, which only damaged counters cause
        self._claim = claim_reader(view.segment, view.geometry)
        with ClosedAfterError(self._claim):
            longest = _longest_add(view, self._window)
            kind = CommittedCursor if DURABLE in view.segment.description else ReadCursor
            self._cursor = kind(view.segment, view.native, view.geometry, longest)
            # Also the rows of a commit that was killed before their release
            ReadCursor.release(self._cursor, self._needed_from(self._cursor.now[inorder.POSITION]))

    def read(self, n: int | None = None, *, timeout: float | None = None) -> Batch:
        """Consumes the next batch and returns it.

        One store consumes the batch: if the reader dies before the store, the next reader gets the batch; if it dies
        just after the store, the batch is lost. If a signal's exception ends the call, the next call returns
        the batch; on Python 3.10, a signal in the call's last instant loses it. Rows taken early, from a full lane
        whose writer waits, are consumed at once. A durable queue keeps all rows until `commit`.

        Args:
            n: transitions or unrolls of this batch; None: batch_size.
            timeout: seconds to wait for data; None does not wait.

        Raises:
            NotEnoughData: `timeout` is None and less than a batch is ready; what is ready stays for the next call.
            TimeoutError: less than a batch became ready within the timeout.
            Deadlocked: a writer waits for room that rows of a durable queue take until a `commit`.
            MarlcoreError: writers overwrote every copied batch for 10 seconds.
            UsedByTwoThreads: another thread is reading. LaneBusy: this is a forked child whose parent still reads.
            ClosedError: the reader or its queue was closed. ValueError: n or the timeout is out of range; or the reader
                has rows, taken early or by an interrupted call, for a batch of another size.
        """
        batch, begun = self._fill(n, timeout)
        # CPython handles no signal between the last call and the return.
        begun.memory, begun.filled, begun.before, begun.first = None, 0, None, begun.first + 1
        return batch

    @one_thread
    def _fill(self, n: int | None, timeout: float | None) -> tuple[Batch, _Begun]:
        """Takes what the next batch lacks, and keeps the batch until `read` returns it."""
        deadline, size, begun = deadline_of(timeout), self._resize(n), self._begun
        memory = begun.memory or self._read_plan.memory()
        self.check_open()
        while True:
            if not begun.told:
                self._tell()  # a signal interrupted the last call
            if begun.filled == size:
                self._cursor.want(0)
                self._enough = 0
                batch = memory.batch()
                batch.continues = self._continues(batch)
                return batch, begun
            self.check_open()  # behind the return: rows that were taken go to no other reader
            filled, ready, pending = self._rows.copy_whole(memory, self._prepare, begun.first, begun.filled)
            self.stats.lapped = self._rows.lapped
            if filled > begun.filled:
                self._consume(self._next, memory, filled)
            elif (self._settled != self._cursor.now).any():  # rows never to be delivered would keep writers waiting
                self._consume(self._settled, begun.memory, begun.filled)
            if filled < size:
                self._wait(ready, pending, deadline)

    @one_thread
    def state_dict(self) -> dict[str, NDArray[np.int64]]:
        """Returns the reader's place after the last batch that it returned: int64 `cursor` [4, lanes], `queue` [1].

        Save it with what was learned from the batches, and give it to `commit` once that is on disk.
        """
        return self._state()

    def _state(self) -> dict[str, NDArray[np.int64]]:
        self.check_open()
        behind = self._cursor.now if self._begun.before is None else self._begun.before
        return {"cursor": behind.copy(), "queue": np.array([self._view.segment.nonce], np.uint64).view(np.int64)}

    @one_thread
    def commit(self, state: Mapping[str, NDArray[Any]] | None = None) -> None:
        """Consumes a durable queue's rows up to a state: no later reader gets them, and writers have their room.

        A later reader begins after the last commit. If a checkpoint was saved but not committed, commit its state
        before this reader reads. After a power cut, do so before writers add rows, and replace the checkpoint's state
        by a new `state_dict`: the old one may count rows that the cut took, whose tickets writers use again.

        Args:
            state: a `state_dict` of a reader of this queue; None: everything that was read.

        Raises: ValueError: the queue is not durable, or the state is of another queue or older than the last commit.
        """
        cursor, ours = self._durable_cursor(), self._state()
        state = ours if state is None else state
        behind = state_array(state, "cursor", self._next.shape, np.int64)
        if state_array(state, "queue", (1,), np.int64) != ours["queue"]:
            raise ValueError(f"state: expected a state of this queue, {self._view.segment.path}, got another queue's")
        behind = cursor.checked(behind, self._view.native)
        cursor.commit(behind, self._needed_from(behind[inorder.POSITION]))

    @property
    def commit_due(self) -> bool:
        """Whether rows that await a `commit` take half of a durable queue's lane, or room for which a writer waits."""
        cursor = self._durable_cursor()
        rows, crowded = cursor.uncommitted(), cursor.crowded(self._written())
        return bool(((2 * rows > self._view.geometry.capacity) | (crowded & (rows > 0))).any())

    def _durable_cursor(self) -> CommittedCursor:
        self.check_open()
        if not isinstance(self._cursor, CommittedCursor):
            raise ValueError(f"commit: expected a durable queue, got {self._view.segment.path}, which is not")
        return self._cursor

    @property
    def may_be_ready(self) -> bool:
        """Whether the rows that the last `read` lacked for a batch have come, or a writer waits for room."""
        return self._missing(self._enough) == 0

    def check_open(self) -> None:
        """Raises ClosedError after `close` of the reader or its queue."""
        self._view.segment.check_open()
        if self._closed:
            raise ClosedError(f"{self._view.segment.path}: the reader was closed")

    def close(self) -> None:
        """Waits until no other thread reads; then another reader may continue from here. Repeated calls are harmless.

        In a signal handler, the queue is free once the `read` that it interrupts has ended.
        """
        self._closed = True
        self._read_plan.event.notify()  # so that a thread that sleeps in `read` finds the reader closed
        close_when_alone(self._claim, self._inside)

    def forked(self) -> None:
        """Makes the first use in a forked child take the reading end, once the parent has closed its reader."""
        at_first_use(self._inside, self._take_end_anew)

    def __reduce__(self) -> Any:
        raise TypeError("a TrajectoryReader belongs to one process: pass the queue and call its `reader` there")

    def _resize(self, n: int | None) -> int:
        """Gives the next batch n rows, by default batch_size."""
        if n is not None:
            check_whole("n", n)
        if (size := self.batch_size if n is None else int(n)) != self._size:
            if begun := self._begun.filled:
                raise ValueError(f"n: expected {self._size}, since {begun} of them were taken already, got {size}")
            self._size = 0  # if an interrupt or an error comes now, the next call does this anew
            self._read_plan.resize(size)
            self._size = size
        return self._size

    def _prepare(self) -> None:
        self._next[:] = self._cursor.now
        self._rows.crowded[:] = self._cursor.crowded(self._read_plan.windows[rows.HI])

    def _continues(self, batch: Batch) -> NDArray[np.bool_] | None:
        """Returns `Batch.continues`; the indices of neighbouring rows of a lane differ by the number of lanes."""
        window, view = self._window, self._view
        if window.length is not None or window.n_step > 1 or view.spec.next_obs:
            return None
        continues = np.zeros(len(batch), np.bool_)
        np.equal(batch.index[1:] - batch.index[:-1], view.geometry.lanes, out=continues[:-1])
        continues &= ~(batch.terminated | batch.truncated)
        return continues

    def _consume(self, cursor: Ints, memory: BatchMemory | None, filled: int) -> None:
        now, begun, stats = self._cursor.now, self._begun, self.stats
        passed, dropped, skipped = (cursor - now)[inorder.PASSED :].sum(axis=1).tolist()
        before = now.copy() if begun.memory is None and filled else begun.before
        # All of this or nothing: CPython handles no signal between two calls.
        now[:] = cursor
        begun.memory, begun.filled, begun.before, begun.told = memory, filled, before, False
        stats.read += passed - dropped - skipped
        stats.dropped += dropped
        stats.skipped += skipped
        self._tell()

    def _tell(self) -> None:
        self._cursor.move(self._cursor.now)
        self._cursor.release(self._needed_from(self._cursor.now[inorder.POSITION]))
        self._begun.told = True

    def _needed_from(self, position: Ints) -> Ints:
        """Returns the oldest rows that a stack of frames or a stored state may still need, int64 [lanes]."""
        oldest: Ints = position - np.maximum(self._window.stack - 1, position % self._window.period)
        return oldest

    def _wait(self, ready: int, pending: int, deadline: float | None) -> None:
        began, committed = time.monotonic(), int(self._read_plan.windows[rows.HI].sum())
        unread = committed - int(self._cursor.now[inorder.POSITION].sum())
        # Enough also for a thread that is both reader and writers, which adds to each lane before it asks again.
        self._cursor.want(unread + 2 * (self._size * (self._window.length or 1) + self._view.geometry.lanes))
        self._enough = committed + max(1, self._size - ready - pending)
        still = self._cursor.crowded(self._read_plan.windows[rows.HI])
        self._stuck = bool(self._rows.crowded[still].any())
        if not (self._stuck and isinstance(self._cursor, CommittedCursor)):
            self._cursor.count_look()
        elif (kept := self._cursor.uncommitted(self._state()["cursor"])[still] > 0).any():
            lane = int(np.flatnonzero(still)[kept.argmax()])
            waits = f"the writer of lane {lane} waits for room, which a `commit` makes"
            raise Deadlocked(f"{self._view.segment.path}: {waits}: commit whenever `commit_due` says so")
        if deadline is None:
            raise NotEnoughData(self._shortage(ready))
        try:
            missing = partial(self._missing, self._enough)
            if not sleep_until(missing, self._read_plan.event, deadline, self.check_open):
                raise TimedOut(self._shortage(ready))
        finally:
            self.stats.waited += time.monotonic() - began

    def _missing(self, committed: int) -> int:
        written = self._written()
        missing = max(0, committed - int(written.sum()))
        return 0 if missing and not self._stuck and self._cursor.crowded(written).any() else missing

    def _written(self) -> Ints:
        """Returns the rows that are committed to each lane now, int64 [lanes]."""
        self._read_plan.read_windows()
        written: Ints = self._read_plan.windows[rows.HI]
        return written

    def _shortage(self, ready: int) -> str:
        of = "transitions" if self._window.length is None else f"unrolls of {self._window.length}"
        return f"{self._view.segment.path}: expected {self._size} {of} that are whole, got {ready}"


class QueueRowsReader(RowsReader):
    """Reads raw rows, in place of the queue's reader; made by `TrajectoryQueue.rows_reader`."""

    once = True

    def __init__(self, view: LaneView) -> None:
        if DURABLE in view.segment.description:
            raise ValueError("rows_reader: expected a queue that is not durable, since a rows_reader never commits")
        super().__init__(view)
        self._claim = claim_reader(view.segment, view.geometry)
        self._record = np.zeros((1, view.layout.record_bytes), np.uint8)
        with ClosedAfterError(self._claim):
            longest = view.geometry.capacity - 1  # the newest row holds the number of written transitions
            self._cursor = ReadCursor(view.segment, view.native, view.geometry, longest)

    def release(self, tickets: Ints) -> None:
        """Consumes the rows below these tickets, one per lane, which makes room for other rows."""
        if self._claim.fd < 0:
            raise ClosedError(f"{self._view.segment.path}: the rows' reader was closed, or belongs to a parent process")
        cursor = self._cursor.now.copy()
        position, passed = cursor[inorder.POSITION], cursor[inorder.PASSED]
        for lane in np.flatnonzero(tickets > position).tolist():
            passed[lane] += (self._transitions(lane, int(tickets[lane])) - passed[lane]) & 0xFFFFFFFF
            position[lane] = tickets[lane]
        self._cursor.move(cursor)
        self._cursor.release(position)

    def close(self) -> None:
        """Lets another reader continue from here. Repeated calls are harmless."""
        self._claim.close()

    def _transitions(self, lane: int, ticket: int) -> int:
        """Reads the number of a lane's transitions below a ticket, modulo 2^32, from the row before the ticket."""
        if self._view.native.read(lane, ticket - 1, 1, self._record):
            raise SegmentCorrupt(f"{self._view.segment.path}: lane {lane} lacks row {ticket - 1}, which is unread")
        ordinal, place = map(int, self._record[0, :8].view(np.uint32))
        return ordinal + (not place >> 24 & BOUNDARY)
