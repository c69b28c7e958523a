"""Binds the C core's lanes, events, words and locks; takes pointers once, and turns return codes into exceptions."""

import errno
import os
import time
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ClosedError, MarlcoreError, SegmentCorrupt

try:
    from .._core import ffi as _ffi
    from .._core import lib as _lib
except ModuleNotFoundError as error:
    if find_spec("_cffi_backend") is None:
        raise ModuleNotFoundError("marlcore needs cffi: python -m pip install cffi", name="cffi") from None
    raise ImportError(
        f"compiled core: expected one in {Path(__file__).parents[1]}, got none: run `python -m pip install -e .` in "
        "the source folder, or start Python in another folder to use an installed marlcore",
        name=error.name,
    ) from None

ffi: Any = _ffi
lib: Any = _lib

LINE: int = lib.MC_LINE
MAX_COLUMNS: int = lib.MC_MAX_COLUMNS
TERMINATED: int = lib.MC_TERMINATED
TRUNCATED: int = lib.MC_TRUNCATED
BOUNDARY: int = lib.MC_BOUNDARY
TICKETS = 1 << 62  # more than a lane ever has
EVERYTHING = 2**32 - 1  # more than any waiter waits for

_WATCH_S = 0.01
# The last words of a lane's counters line, see struct mc_counters: the lowest ticket that readers may see, in one word
# after an even and in another after an odd number of clears; and, in lane 0, this number, whose store completes a clear
FLOORS, _CLEARS = 6, 8
_LINE_WORDS = LINE // 8
_LANES_KEPT = 1024  # cached lane structs, so that memory does not grow with the number of lanes

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


_ERRORS: dict[int, tuple[type[Exception], str]] = {
    errno.EUCLEAN: (SegmentCorrupt, "the lane's counters contradict one another; the lane is quarantined"),
    errno.ESTALE: (MarlcoreError, "writers overwrote every row from which the count was read; use a larger capacity"),
    errno.ESHUTDOWN: (ClosedError, "the writer was closed"),
    errno.EDOM: (ValueError, "reward: expected a finite number, got NaN or infinity"),
    errno.EPROTO: (ValueError, "final_obs: expected one observation for each truncated row, got None"),
    errno.EINVAL: (ValueError, "rows: expected at least one and at most the lane's capacity"),
}


def error_of(code: int) -> Exception:
    """Returns the exception for a negative return code that is not an ordinary result."""
    kind, text = _ERRORS.get(-code, (MarlcoreError, os.strerror(-code)))
    return kind(text)


def checked(result: int) -> int:
    """Returns a result of the C core that is 0 or more; raises the error of a negative result."""
    if result < 0:
        raise error_of(result)
    return result


def pointer_to(array: NDArray[Any], ctype: str = "uint8_t[]") -> Any:
    """Returns the address of a C-contiguous array; the result keeps the array alive."""
    return ffi.from_buffer(ctype, array)


class NativeLanes:
    """The lanes of one segment as the C core sees them; the cost of this object does not grow with their count."""

    def __init__(self, body: Bytes, geometry: Any) -> None:
        """Takes the segment's body, which begins with the event line, and the lanes' LaneGeometry."""
        self._memory = pointer_to(body)
        self.count: int = geometry.lanes
        self.raw = raw = ffi.new("struct mc_lane *")
        raw.capacity = geometry.capacity
        raw.counters = self._memory + geometry.counters_offset(0)
        raw.event = self._memory
        raw.columns = len(geometry.columns)
        for k, size in enumerate(geometry.columns):
            raw.column[k].base = self._memory + geometry.column_offset(k)
            raw.column[k].size = size
            raw.column[k].stride = geometry.stride(k)
            raw.column[k].every = geometry.every[k]

        first, at = geometry.counters_offset(0), geometry.counters_offset(-geometry.first) + 8 * _CLEARS
        self._lines, self._clears = Words(body[first : first + LINE * self.count]), Words(body[at : at + 8])
        self._glance = body[at : at + 8].data.cast("q")  # the same word, without a call
        self._cleared = 0, np.zeros(self.count, np.int64)  # what `cleared` returned last, in any thread

        @lru_cache(_LANES_KEPT)
        def nth(lane: int) -> Any:
            one = ffi.new("struct mc_lane *")
            lib.mc_lanes_nth(raw, lane, one)
            return one

        self._nth = nth

    def withhold(self, promised: int) -> None:
        """Makes writers check the flusher's words before they take tickets; `promised` is their offset in the body."""
        self.raw.promised = self._memory + promised
        self.raw.withheld = TICKETS

    def check(self, lane: int) -> None:
        """Checks a lane's counters, for the lane's writer. Raises SegmentCorrupt if they contradict each other."""
        checked(lib.mc_lane_check(self._nth(lane)))

    def committed(self, lane: int) -> int:
        """Counts the rows committed to the lane since its creation. Raises SegmentCorrupt on an impossible count."""
        committed: int = lib.mc_lane_committed(self._nth(lane))
        return committed if committed >= 0 else checked(committed)

    def transitions(self, lane: int) -> int:
        """Counts the transitions that a replay lane holds, without boundary rows."""
        return checked(lib.mc_lane_transitions(self._nth(lane)))

    def all_transitions(self) -> int:
        """Counts the transitions that all lanes together hold."""
        return checked(lib.mc_lanes_transitions(self.raw, self.count))

    def appender(self, lane: int, source: NDArray[Any]) -> Callable[..., None]:
        """Returns append(rows=1), which appends the first `rows` rows of `source` to a lane of one column."""
        sources, row = ffi.new("void *[]", MAX_COLUMNS), pointer_to(source.view(np.uint8))

        def append(rows: int = 1) -> None:
            sources[0] = row
            checked(lib.mc_lane_append(self._nth(lane), rows, sources))

        return append

    def appender_in_steps(
        self, lane: int, source: Bytes, given: int
    ) -> tuple[Callable[[], int], Callable[[int], None]]:
        """Returns begin() and finish(ticket), between which a device writes the first `given` bytes of a row.

        `begin` returns the row's ticket. `finish` copies the other bytes from `source`, and makes the row readable.
        """
        raw, row = self._nth(lane), pointer_to(source)
        return lambda: checked(lib.mc_lane_begin(raw)), lambda ticket: lib.mc_lane_finish(raw, ticket, row, given)

    def newest(self) -> tuple[Ints, Ints]:
        """Returns each lane's committed rows and the first word of the newest of them, or 0, int64 [lanes] each."""
        committed, words = np.zeros((2, self.count), np.int64)
        rows, heads = pointer_to(committed, "int64_t[]"), pointer_to(words, "int64_t[]")
        checked(lib.mc_lanes_newest(self.raw, self.count, rows, heads))
        return committed, words

    def inserted(self) -> int:
        """Counts the transitions ever written to all lanes, without boundary rows."""
        inserted: int = lib.mc_lanes_inserted(self.raw, self.count)
        return inserted if inserted >= 0 else checked(inserted)

    def written(self, lane: int) -> int:
        """Counts the transitions ever written to a lane, without boundary rows."""
        return checked(lib.mc_lanes_inserted(self._nth(lane), 1))

    def read(self, lane: int, ticket: int, rows: int, dest: NDArray[Any]) -> int:
        """Copies `rows` rows of column 0 from `ticket` on.

        Returns 0, -EAGAIN if the rows are not written yet, or -ESTALE if they were overwritten.
        """
        dests = ffi.new("void *[]", MAX_COLUMNS)
        dests[0] = pointer = pointer_to(dest)
        code = int(lib.mc_lane_read(self._nth(lane), ticket, rows, dests))
        del pointer
        return code if code in (-errno.EAGAIN, -errno.ESTALE) else checked(code)

    def newest_reader(self, lane: int, dest: NDArray[Any]) -> Callable[[], int | None]:
        """Returns a function that copies the newest row to `dest`.

        The function returns the row's ticket + 1, 0 if there is no row, or None if a writer overwrote the row
        meanwhile.
        """
        raw, pointer = self._nth(lane), pointer_to(dest.view(np.uint8))
        return lambda: None if (count := lib.mc_lane_read_newest(raw, pointer)) == -errno.ESTALE else count

    def record(self, lane: int, ticket: int) -> Bytes | None:
        """Returns a copy of a row's record, uint8 [stride]; None if it is overwritten, not written yet, or below 0."""
        record = np.zeros(self.raw.column[0].stride, np.uint8)
        return None if ticket < 0 or self.read(lane, ticket, 1, record) else record

    def windows(self, lo: Ints, hi: Ints) -> Callable[[], int]:
        """Returns a function that fills lo and hi, int64 [lanes], with each lane's range [lo, hi) of whole tickets.

        The function returns the number of clears.
        """
        low, high, clears = pointer_to(lo, "int64_t[]"), pointer_to(hi, "int64_t[]"), self._glance
        own, seen = np.zeros(self.count, np.int64), 0
        raise_to_own = self.raiser(own, lo, hi)

        def fill() -> int:
            nonlocal seen
            if clears[0] != seen:
                number, own[:] = self.cleared()
                seen = number  # last: after an interrupt, the next call looks again
            if code := lib.mc_lanes_window(self.raw, self.count, low, high):
                raise error_of(code)
            if seen:
                raise_to_own()
            return seen

        return fill

    def raiser(self, floors: Ints, lo: Ints, hi: Ints) -> Callable[[], None]:
        """Returns a function that raises lo to the floors, int64 [lanes], or SegmentCorrupt if one is above hi."""
        pointers = [pointer_to(array, "int64_t[]") for array in (floors, hi, lo)]

        def lift() -> None:
            if code := lib.mc_windows_raise(self.count, *pointers):
                raise error_of(code)

        return lift

    def clear(self, settle: Callable[[], None] = lambda: None) -> None:
        """Hides the rows of all lanes from every reader; only one process at a time may be inside.

        If the segment is durable, `settle` syncs all stores so far: the floors, on several pages, must be on disk
        before the number of clears, which selects among them.
        """
        clears = self._clears.load(0)
        for lane in range(self.count):
            self._lines.store(_floor_word(lane, clears + 1), self.committed(lane))
        settle()
        self._clears.add(0, 1)
        settle()

    def cleared(self) -> tuple[int, Ints]:
        """Returns the number of clears so far, and the floors, int64 [lanes]. No later counter is below its floor."""
        last = self._cleared
        if self._glance[0] != last[0]:
            number = self._clears.load(0)
            floors = [self._lines.load(_floor_word(lane, number)) for lane in range(self.count)]
            self._cleared = last = number, np.array(floors, np.int64)
        return last

    def validator(self, lane: Ints, lowest: Ints, ok: Bytes) -> Callable[[int], int]:
        """Returns check(n), which sets ok[i] for i < n: to 1 if ticket lowest[i] of lane[i] is whole, otherwise to 0.

        `check` returns the number of zeros.
        """
        lanes, tickets, whole = pointer_to(lane, "int64_t[]"), pointer_to(lowest, "int64_t[]"), pointer_to(ok)
        return lambda n: int(lib.mc_lanes_validate(self.raw, n, lanes, tickets, whole))


def _floor_word(lane: int, clears: int) -> int:
    return lane * _LINE_WORDS + FLOORS + clears % 2


class Event:
    """A futex on which a process sleeps until other processes have committed enough rows, or freed enough room.

    In read-only memory, an Event cannot announce a waiter: `wait` sleeps for at most 10 ms.
    """

    def __init__(self, memory: Bytes, offset: int = 0) -> None:
        self._announces = memory.flags.writeable
        self._memory = pointer_to(memory)
        self._event = self._memory + offset

    def prepare(self, amount: int) -> int:
        """Announces a waiter for `amount` units; returns the first argument of `wait`.

        Between the two calls, check again how many units are missing.
        """
        return int(lib.mc_event_prepare(self._event, min(amount, EVERYTHING))) if self._announces else 0

    def wait(self, seen: int, seconds: float) -> None:
        """Sleeps until the announced amount has come since `prepare`, or until the timeout."""
        if not self._announces:
            time.sleep(min(seconds, _WATCH_S))
            return
        code = lib.mc_event_wait(self._event, seen, max(0, int(seconds * 1e9)))
        if code not in (0, -errno.ETIMEDOUT, -errno.EINTR):
            raise error_of(code)

    def notify(self, amount: int = EVERYTHING) -> None:
        """Reports that `amount` units have come; wakes all waiters once any waiter's amount is complete."""
        lib.mc_event_notify(self._event, min(amount, EVERYTHING))


class Words:
    """64-bit words in shared memory. Only one process writes each word; every process may read it."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = pointer_to(memory)

    def load(self, index: int) -> int:
        return int(lib.mc_word_load(self._memory, index))

    def loader(self, index: int) -> Callable[[], int]:
        return partial(lib.mc_word_load, self._memory, index)

    def store(self, index: int, value: int) -> None:
        lib.mc_word_store(self._memory, index, value)

    def store_each(self, first: int, step: int, values: NDArray[np.int64]) -> None:
        """Stores values [n], one in each of the words at first, first + step, and so on."""
        lib.mc_words_store(self._memory + 8 * first, len(values), 8 * step, ffi.from_buffer("int64_t[]", values))

    def storer(self, index: int) -> Callable[[int], None]:
        return partial(lib.mc_word_store, self._memory, index)

    def add(self, index: int, more: int) -> None:
        """Adds to a word, modulo 2^64, for the word's only writer. A damaged word raises where it is read, not here."""
        lib.mc_word_add(self._memory, index, more)

    def adder(self, index: int, more: int) -> Callable[[], None]:
        return partial(lib.mc_word_add, self._memory, index, more)

    def summer(self, first: int, count: int, step: int) -> Callable[[], int]:
        """Returns a function that sums `count` words, those at first, first + step, ..., modulo 2^64."""
        return partial(lib.mc_words_sum, self._memory + 8 * first, count, 8 * step)


def try_lock(fd: int, offset: int, exclusive: bool) -> bool:
    """Locks one byte for fd's open file description; returns False if the lock of another description conflicts."""
    code = lib.mc_lock_try(fd, offset, exclusive)
    if code == -errno.EAGAIN:
        return False
    if code:
        raise OSError(-code, os.strerror(-code))
    return True


def is_locked(fd: int, offset: int) -> bool:
    """Returns whether an open file description other than fd's holds a lock of this byte."""
    code = lib.mc_lock_held(fd, offset)
    if code < 0:
        raise OSError(-code, os.strerror(-code))
    return bool(code)
