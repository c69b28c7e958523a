"""The flusher of a durable segment: a thread that puts rows on disk, then marks how many; see watermark.py."""

import errno
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..closing import Closing
from ..errors import MarlcoreError
from .files import File
from .guard import invalidate_after_fork
from .lanes import LaneGeometry, writer_lock
from .native import LINE, TICKETS, NativeLanes, Words, is_locked
from .segment import Segment
from .watermark import NEWEST, PROMISED, WATERMARK, Ints, Mark, Marks, boot_id

log = logging.getLogger(__name__)

Kept = Callable[[], tuple[Ints, Ints]]  # returns slots' words (see Mark), and the tickets below which lanes have room

_LEAST_AHEAD = 1024  # rows that a lane may grow by at once, before its writer must pledge


class Flushing:
    """Writes the marks of one segment, in the one process that holds the file `held`.

    `kept` returns the words of the slots that a mark records, and the ticket below which each lane has room, int64
    [lanes]. None: a mark records each slot's first word, and room is unlimited.
    """

    def __init__(
        self,
        segment: Segment,
        lanes: NativeLanes,
        geometry: LaneGeometry,
        marks: Marks,
        held: File,
        kept: Kept | None = None,
    ) -> None:
        self.path: Path = segment.path
        self.error: Exception | None = None  # which ended the thread
        self._marks, self._held = marks, held
        self._lanes, self._geometry = lanes, geometry
        self._slots = Words(segment.body[geometry.slot_offset(0) : geometry.slot_offset(geometry.slots)])
        self._kept = kept
        first, end = geometry.counters_offset(0), geometry.counters_offset(geometry.lanes)
        self._reserved = segment.body[first:end].view(np.int64)[1 :: LINE // 8]
        self._turn = threading.Lock()
        self._last: Mark | None = None  # the last mark on disk, of this flusher

    def flush(self) -> None:
        """Puts every row that is committed now on disk, then a mark that says so. Raises OSError, MarlcoreError."""
        with self._turn:
            if self._marks.failed:
                raise OSError(errno.EIO, "an earlier write of the file failed, so rows may never have reached the disk")
            try:
                self._flush()
            except OSError:
                self._marks.fail()  # after a failed write, the kernel treats the pages as written
                raise

    def release(self) -> None:
        """Lets another process be the flusher; the thread's last step, so that no two ever write marks."""
        self._held.close()

    def _flush(self) -> None:
        before = self._last
        if before is None:
            before = self._marks.newest()
            self._held.sync()  # the last flusher may have died before its mark was on disk
        mark = self._next(before)
        if mark is not self._last:
            self._held.sync()
            self._marks.write(mark)
            self._held.sync()
            self._marks.publish(mark)
            self._last = mark

    def _next(self, before: Mark) -> Mark:
        """Returns the mark of what is committed now, or `before` if nothing was added."""
        # Read before the lanes' counters, so that all rows below a cursor are also below the watermarks.
        slots, room = (self._kept or self._first_words)()
        lanes = np.zeros_like(before.lanes)
        lanes[WATERMARK], lanes[NEWEST] = self._lanes.newest()
        capacity, added = self._geometry.capacity, lanes[WATERMARK] - before.lanes[WATERMARK]
        ahead = np.clip(2 * added, min(_LEAST_AHEAD, max(1, capacity // 4)), max(1, capacity // 4))
        wanted = np.maximum(lanes[WATERMARK], np.minimum(lanes[WATERMARK] + ahead, room))
        lanes[PROMISED] = self._promises(wanted, before.lanes[PROMISED])
        if before is self._last and (lanes == before.lanes).all() and (slots == before.slots).all():
            return before
        return Mark(before.number + 1, boot_id(), lanes, slots)

    def _first_words(self) -> tuple[Ints, Ints]:
        counts = [[self._slots.load(slot * LINE // 8)] for slot in range(self._geometry.slots)]
        return np.array(counts, np.int64).reshape(-1, 1), np.full(self._geometry.lanes, TICKETS)

    def _promises(self, wanted: Ints, before: Ints) -> Ints:
        """Returns each lane's next promise: the wanted one, or the earlier if higher and a writer may rely on it.

        A living writer may have read the earlier promise. So a lower one is published first; if no process then has the
        right to write to the lane, every later writer reads the lower one. A writer killed inside an append may have
        reserved tickets, which the promise must include.
        """
        promises = np.maximum(wanted, before)
        for lane in np.flatnonzero(wanted < before).tolist():
            self._marks.promise(lane, int(wanted[lane]))
            if not is_locked(self._held.fd, writer_lock(lane)):
                promises[lane] = max(wanted[lane], self._reserved[lane])
            self._marks.promise(lane, int(promises[lane]))
        return promises


class Flusher(Closing):
    """Runs `Flushing.flush` each `every_s` seconds in a thread, and a last time at the thread's end."""

    def __init__(self, flushing: Flushing, every_s: float) -> None:
        self._flushing = flushing
        stopping = threading.Event()
        # The thread does not reference this object, so that an abandoned one is collected and ends the thread.
        thread = threading.Thread(
            target=_flush_until, args=(flushing, every_s, stopping), name="marlcore-flusher", daemon=True
        )
        self._finalizer = weakref.finalize(self, _stop, stopping, thread)
        invalidate_after_fork(self)
        thread.start()

    def close(self) -> None:
        """Ends the thread, after a last mark. Raises the error that ended the thread earlier, once."""
        self._finalizer()
        error, self._flushing.error = self._flushing.error, None
        if error is not None:
            raise error

    def forked(self) -> None:
        """Forgets the thread in a forked child, which lacks it."""
        self._finalizer.detach()


def _flush_until(flushing: Flushing, every_s: float, stopping: threading.Event) -> None:
    try:
        while not stopping.wait(every_s):
            flushing.flush()
        flushing.flush()
    except (OSError, MarlcoreError) as error:
        flushing.error = error
        log.error("%s: rows added from now on will not survive a power cut: %s", flushing.path, error)
    finally:
        flushing.release()


def _stop(stopping: threading.Event, thread: threading.Thread) -> None:
    stopping.set()
    # The thread may not have started, and it may collect garbage too.
    if thread.is_alive() and thread is not threading.current_thread():
        thread.join()
