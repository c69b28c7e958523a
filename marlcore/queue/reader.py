"""The reading end of a trajectory queue: what follows the cursor, copied, validated, and then consumed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import ClosedError, MarlcoreError, NotEnoughData
from ..kernels import inorder, rows
from ..memory import claim_reader, one_thread, sleep_until
from ..transitions import Batch, BatchMemory, Drawing, LaneView, Window
from .cursor import CURSOR_ROWS, ReadCursor

__all__ = ["ReaderOptions", "ReaderStats", "TrajectoryReader"]

LAP_LIMIT_S = 10.0


@dataclass
class ReaderStats:
    """What a reader did so far.

    Attributes:
        read: transitions returned.
        dropped: transitions that were overwritten before they, or the frames of their stack, were read.
        skipped: transitions that no batch could hold; see `TrajectoryQueue.skipped`.
        lapped: batches copied again, because a writer overwrote what was copied.
        waited: seconds slept for data.
    """

    read: int = 0
    dropped: int = 0
    skipped: int = 0
    lapped: int = 0
    waited: float = 0.0


@dataclass(frozen=True)
class ReaderOptions:
    """What a reader's batches are; see `TrajectoryQueue.reader`."""

    batch_size: int
    length: int | None
    stack: int
    n_step: int
    gamma: float
    pad: str

    def window(self, lanes: LaneView) -> Window:
        """Raises ValueError: a field, what was expected and what came."""
        spec, lane_rows = lanes.spec, lanes.geometry.capacity
        for name in ("batch_size", "stack", "n_step", *(["length"] if self.length is not None else [])):
            check_whole(name, getattr(self, name))
        if self.length is not None:
            if spec.next_obs:
                raise ValueError("length: expected None, since rows of a spec with next_obs do not follow one another")
            if self.length % spec.state_every:
                raise ValueError(
                    f"length: expected a multiple of the {spec.state_every} rows from one stored state to the next, "
                    f"got {self.length}"
                )
        period = spec.state_every if self.length is not None else 1
        window = Window(self.stack, self.n_step, self.gamma, self.pad, self.length, period=period)
        spare = self.longest_add(lanes)
        if spare < 2:
            raise ValueError(
                f"batch_size: expected a queue of at least {lane_rows + 2 - spare} rows a lane for such batches of "
                f"{self.batch_size}, got {lane_rows}"
            )
        window.check(spec, lane_rows)
        return window

    def kept(self, lanes: LaneView, position: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many rows before each position may still be needed, for frames of a stack or for a stored state."""
        every = lanes.spec.state_every if self.length is not None else 1
        return np.maximum(self.stack - 1, position % every)

    def longest_add(self, lanes: LaneView) -> int:
        """Rows that an add may have so that it never waits in every lane while this reader waits for more.

        A reader that waits has less than a batch: in all lanes together at most batch_size - 1 whole transitions or
        unrolls, each with a boundary row; and in each lane the rows of one more that is not whole yet, and those kept.
        """
        length = self.length or 1
        kept = max(self.stack, lanes.spec.state_every if self.length is not None else 1) - 1
        whole = (self.batch_size - 1) * (length + 1) // lanes.geometry.lanes
        return lanes.geometry.capacity + 1 - kept - length - self.n_step - whole


class TrajectoryReader:
    """Reads a queue in order; made by `TrajectoryQueue.reader`. For one thread at a time.

    Example:
        with queue.reader(batch_size=256, n_step=3) as reader:
            while training:
                batch = reader.read(timeout=60.0)

    Attributes:
        stats: what was read, dropped, skipped, and waited.
    """

    def __init__(self, lanes: LaneView, options: ReaderOptions) -> None:
        window = options.window(lanes)
        self.stats = ReaderStats()
        self._closed = False
        self._inside: dict[int, None] = {}  # see guard.py
        self._view = lanes
        self._options = options
        self._drawing = Drawing(lanes, window, int(options.batch_size))
        count = lanes.geometry.lanes
        self._cursors = np.zeros((3, CURSOR_ROWS, count), np.int64)
        self._next, self._settled = self._cursors[inorder.NEXT], self._cursors[inorder.SETTLED]
        self._tallies = np.zeros((4, count), np.int64)
        self._margin, self._each = self._tallies[inorder.MARGIN], np.arange(count)
        self._whole = np.ones(count, np.uint8)
        self._validate = lanes.native.validator(self._each, self._tallies[inorder.LEAST], self._whole)
        self._first = 0
        self._claim = claim_reader(lanes.segment, lanes.geometry)
        try:
            self._cursor = ReadCursor(lanes.segment, lanes.native, lanes.geometry, options.longest_add(lanes))
            self._release()
            # Nothing is consumed here, but the kernel is compiled or loaded now and not by the first read.
            self._copy(self._drawing.memory())
        except BaseException:
            self._claim.release()
            raise

    @one_thread
    def read(self, timeout: float | None = None) -> Batch:
        """The next batch, which is consumed when this returns it.

        It is consumed by one store, behind everything else: whoever dies before it leaves the batch to the next
        reader; who dies after it, or is interrupted by a signal just then, takes it along. Each transition is so
        delivered at most once, and lost only with the reader that had it in hand.

        Args:
            timeout: seconds to wait for data; None does not wait.

        Raises:
            NotEnoughData: without a timeout, there is less than a batch; what there is stays.
            TimeoutError: the same, after the timeout.
            MarlcoreError: writers overwrote whatever was copied for 10 seconds.
            UsedByTwoThreads: another thread is reading.
            ClosedError: the reader or its queue was closed. ValueError: the timeout is no number, or negative.
        """
        if timeout is not None and not (isinstance(timeout, (int, float, np.number)) and timeout >= 0):
            raise ValueError(f"timeout: expected seconds of at least 0 or None, got {timeout!r}")
        deadline = None if timeout is None else time.monotonic() + timeout
        memory = self._drawing.memory()
        while True:
            self.check_open()
            filled, ready, pending = self._copy_whole(memory)
            if filled:
                batch = memory.batch()
                self._consume(self._next)
                self._release()
                self._first = (self._first + 1) % self._view.geometry.lanes
                return batch
            if (self._settled != self._cursor.now).any():
                self._consume(self._settled)  # what will never be delivered would keep writers waiting
            self._release()  # here too, if a signal interrupted the last read before it did
            self._wait(ready, pending, deadline)

    def check_open(self) -> None:
        """Raises ClosedError after `close`, StaleHandle in a forked child."""
        self._view.segment.check_open()
        if self._closed:
            raise ClosedError(f"{self._view.segment.path}: the reader was closed")

    def close(self) -> None:
        """Lets another reader go on from here; harmless when repeated."""
        self._closed = True
        self._claim.release()

    def __enter__(self) -> TrajectoryReader:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a TrajectoryReader belongs to one process: pass the queue and call its `reader` there")

    def _copy(self, memory: BatchMemory) -> tuple[bool, int, int]:
        """See kernels/inorder.py."""
        d = self._drawing
        d.read_windows()
        self._next[:] = self._cursor.now
        found: tuple[bool, int, int] = inorder.read(
            d.plan, d.columns, memory.address, self._first, self._cursors, self._tallies
        )
        return found

    def _copy_whole(self, memory: BatchMemory) -> tuple[bool, int, int]:
        """The same, again until nothing that was looked at had been overwritten."""
        lapped_since = None
        self._margin[:] = 0
        while True:
            found = self._copy(memory)
            if not self._validate(len(self._whole)):
                return found
            self.stats.lapped += 1
            # A lane whose writer is quicker than this reader is entered further and further from its oldest row.
            step = 1 + self._view.geometry.capacity // 16
            lapped = np.minimum(2 * self._margin + step, self._view.geometry.capacity // 2)
            self._margin[:] = np.where(self._whole == 0, lapped, self._margin)
            lapped_since = lapped_since or time.monotonic()
            if time.monotonic() - lapped_since > LAP_LIMIT_S:
                path = self._view.segment.path
                raise MarlcoreError(f"{path}: writers overwrote whatever was copied; use a larger capacity")

    def _consume(self, cursor: NDArray[np.int64]) -> None:
        passed, dropped, skipped = (cursor - self._cursor.now)[inorder.PASSED :].sum(axis=1).tolist()
        self._cursor.move(cursor)
        self.stats.read += passed - dropped - skipped
        self.stats.dropped += dropped
        self.stats.skipped += skipped

    def _release(self) -> None:
        position = self._cursor.now[inorder.POSITION]
        self._cursor.release(position - self._options.kept(self._view, position))

    def _wait(self, ready: int, pending: int, deadline: float | None) -> None:
        """Sleeps until so many rows were written that a batch may be ready."""
        if deadline is None:
            raise NotEnoughData(self._shortage(ready))
        began, committed = time.monotonic(), int(self._drawing.windows[rows.HI].sum())
        enough = committed + max(1, self._options.batch_size - ready - pending)
        try:
            missing = partial(self._missing, enough)
            if not sleep_until(missing, self._drawing.event, deadline, self.check_open):
                raise TimeoutError(self._shortage(ready))
        finally:
            self.stats.waited += time.monotonic() - began

    def _committed(self) -> int:
        """Rows in all lanes together, since they were created."""
        self._drawing.read_windows()
        return int(self._drawing.windows[rows.HI].sum())

    def _missing(self, committed: int) -> int:
        return max(0, committed - self._committed())

    def _shortage(self, ready: int) -> str:
        of = "transitions" if self._options.length is None else f"unrolls of {self._options.length}"
        return f"{self._view.segment.path}: expected {self._options.batch_size} {of} that are whole, got {ready}"
