"""The C core's lanes, events, words and locks: takes pointers once, and turns return codes into exceptions."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._core import ffi as _ffi
from .._core import lib as _lib
from ..errors import ClosedError, MarlcoreError, SegmentCorrupt

__all__ = [
    "BOUNDARY",
    "LINE",
    "MAX_COLUMNS",
    "TERMINATED",
    "TRUNCATED",
    "Event",
    "NativeLanes",
    "NativeVector",
    "NativeWriter",
    "Words",
    "ffi",
    "is_locked",
    "lib",
    "try_lock",
]

ffi: Any = _ffi
lib: Any = _lib

LINE: int = lib.MC_LINE
MAX_COLUMNS: int = lib.MC_MAX_COLUMNS
TERMINATED: int = lib.MC_TERMINATED
TRUNCATED: int = lib.MC_TRUNCATED
BOUNDARY: int = lib.MC_BOUNDARY
EVERYTHING = 2**32 - 1  # more than any waiter waits for

_LANES_KEPT = 1024  # cached lane structs, so that memory does not grow with the number of lanes

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


def _error(code: int) -> Exception:
    """The exception for a negative return code that is not an ordinary result."""
    if code == -errno.EUCLEAN:
        return SegmentCorrupt("the lane's counters contradict one another; the lane is quarantined")
    if code == -errno.ESHUTDOWN:
        return ClosedError("the writer was closed")
    if code == -errno.EDOM:
        return ValueError("reward: expected a finite number, got NaN or infinity")
    if code == -errno.EPROTO:
        return ValueError("final_obs: expected one observation for each truncated row, got None")
    if code == -errno.EINVAL:
        return ValueError("rows: expected at least one and at most the lane's capacity")
    return MarlcoreError(os.strerror(-code))


def _counted(count: int) -> int:
    """Returns a count of transitions; raises if it is an error code."""
    if count == -errno.ESTALE:
        raise MarlcoreError("writers overwrote every row from which the count was read; use a larger capacity")
    if count < 0:
        raise _error(count)
    return count


def _lane_of(lanes: Any, lane: int) -> Any:
    """One lane of an array of lanes that starts at `lanes`."""
    raw = ffi.new("struct mc_lane *")
    lib.mc_lanes_nth(lanes, lane, raw)
    return raw


def _pointer(array: NDArray[Any], ctype: str = "uint8_t[]") -> Any:
    """The address of a C-contiguous array; the result keeps the array alive."""
    return ffi.from_buffer(ctype, array)


class NativeLanes:
    """The lanes of one segment as the C core sees them; the cost of this object does not grow with their number.

    Args:
        memory: the segment's body, uint8 [nbytes]; it stays mapped while this object lives.
        count: adjacent lanes.
        capacity: rows of each lane.
        event: offset of the event line in `memory`.
        counters: offset of the first lane's counters.
        columns: (offset, size, stride, tickets per row) of each column of the first lane.
    """

    def __init__(
        self,
        memory: Bytes,
        count: int,
        capacity: int,
        event: int,
        counters: int,
        columns: list[tuple[int, int, int, int]],
    ) -> None:
        self._memory = _pointer(memory)
        self.count = count
        self.raw = raw = ffi.new("struct mc_lane *")
        raw.capacity = capacity
        raw.counters = self._memory + counters
        raw.event = self._memory + event
        raw.columns = len(columns)
        for k, (offset, size, stride, every) in enumerate(columns):
            raw.column[k].base = self._memory + offset
            raw.column[k].size = size
            raw.column[k].stride = stride
            raw.column[k].every = every
        self._nth = lru_cache(_LANES_KEPT)(partial(_lane_of, raw))

    def check(self, lane: int) -> None:
        """For the lane's writer. Raises SegmentCorrupt: the counters contradict each other."""
        code = lib.mc_lane_check(self._nth(lane))
        if code:
            raise _error(code)

    def committed(self, lane: int) -> int:
        """Rows committed to the lane since its creation. Raises SegmentCorrupt: the count is impossible."""
        count = int(lib.mc_lane_committed(self._nth(lane)))
        if count < 0:
            raise _error(count)
        return count

    def transitions(self, lane: int) -> int:
        """Transitions that a replay lane holds, without boundary rows."""
        return _counted(lib.mc_lane_transitions(self._nth(lane)))

    def all_transitions(self) -> int:
        """Transitions that all lanes together hold."""
        return _counted(lib.mc_lanes_transitions(self.raw, self.count))

    def appender(self, lane: int, source: NDArray[Any]) -> AppendRow:
        """A callable that appends the first rows of `source` to a lane of one column; for the lane's writer only."""
        return AppendRow(self, self._nth(lane), source)

    def inserted(self) -> int:
        """Transitions ever written to all lanes of a replay with a limiter, without boundary rows."""
        return _counted(lib.mc_lanes_inserted(self.raw, self.count))

    def written(self, lane: int) -> int:
        """Transitions ever written to a lane, without boundary rows; no append may fill the whole lane."""
        return _counted(lib.mc_lanes_inserted(self._nth(lane), 1))

    def read(self, lane: int, ticket: int, rows: int, dest: NDArray[Any]) -> int:
        """Copies `rows` rows of column 0, starting at `ticket`; returns 0, -EAGAIN (not yet) or -ESTALE (lapped)."""
        dests = ffi.new("void *[]", MAX_COLUMNS)
        dests[0] = pointer = _pointer(dest)
        code = int(lib.mc_lane_read(self._nth(lane), ticket, rows, dests))
        del pointer
        if code not in (0, -errno.EAGAIN, -errno.ESTALE):
            raise _error(code)
        return code

    def newest_reader(self, lane: int, dest: NDArray[Any]) -> NewestReader:
        """A callable that copies the newest row of a lane of one column into `dest`."""
        return NewestReader(self, self._nth(lane), dest)

    def windows(self, lo: Ints, hi: Ints) -> Windows:
        """A callable that fills lo and hi, int64 [lanes], with each lane's range of held tickets."""
        return Windows(self, lo, hi)

    def validator(self, lane: Ints, lowest: Ints, ok: Bytes) -> Validator:
        """A callable that checks (lane, lowest ticket) pairs: whether each is still whole."""
        return Validator(self, lane, lowest, ok)


class AppendRow:
    """Appends the first rows of a staging array, at most the lane's capacity; takes its address once."""

    def __init__(self, lanes: NativeLanes, raw: Any, source: NDArray[Any]) -> None:
        self._keep = lanes, source
        self._raw = raw
        self._row = _pointer(source.view(np.uint8))
        self._sources = ffi.new("void *[]", MAX_COLUMNS)
        self._sources[0] = self._row

    def __call__(self, rows: int = 1) -> None:
        code = lib.mc_lane_append(self._raw, rows, self._sources)
        if code:
            raise _error(code)


class NewestReader:
    """Copies the newest row; returns its ticket + 1, 0 for an empty lane, -ESTALE if the row was lapped."""

    def __init__(self, lanes: NativeLanes, raw: Any, dest: NDArray[Any]) -> None:
        self._keep = lanes
        self._raw = raw
        self._dest = _pointer(dest.view(np.uint8))

    def __call__(self) -> int:
        return int(lib.mc_lane_read_newest(self._raw, self._dest))


class Windows:
    """Fills two arrays with each lane's range [lo, hi) of whole tickets."""

    def __init__(self, lanes: NativeLanes, lo: Ints, hi: Ints) -> None:
        self._lanes = lanes
        self._lo = _pointer(lo, "int64_t[]")
        self._hi = _pointer(hi, "int64_t[]")

    def __call__(self) -> None:
        code = lib.mc_lanes_window(self._lanes.raw, self._lanes.count, self._lo, self._hi)
        if code:
            raise _error(code)


class Validator:
    """Sets ok[i] for i < n: whether ticket lowest[i] of lane[i] is still whole. Returns the number lapped."""

    def __init__(self, lanes: NativeLanes, lane: Ints, lowest: Ints, ok: Bytes) -> None:
        self._lanes = lanes
        self._lane = _pointer(lane, "int64_t[]")
        self._lowest = _pointer(lowest, "int64_t[]")
        self._ok = _pointer(ok)

    def __call__(self, n: int) -> int:
        return int(lib.mc_lanes_validate(self._lanes.raw, n, self._lane, self._lowest, self._ok))


class _WritingEnd:
    """What the writing ends of one lane and of several have in common, on the C core's struct of either."""

    _raw: Any

    @staticmethod
    def fail(code: int) -> Exception:
        """The exception for a negative code or ticket."""
        return _error(code)

    def set_frame(self, column: int, frame: NDArray[Any], final: bool = False) -> Any:
        """Sets the array from which the next add takes a column's rows; keep the result until then."""
        pointer = ffi.from_buffer(frame)
        (self._raw.final_frames if final else self._raw.frames)[column] = pointer
        return pointer

    @property
    def policy_version(self) -> int:
        """The version of the acting weights; stored with each row, modulo 2^32."""
        return int(self._raw.policy_version)

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._raw.policy_version = version & 0xFFFFFFFF


class NativeWriter(_WritingEnd):
    """The writing end of one replay lane; the caller holds the lane's lock, or names a lock to take for each append.

    Args:
        lanes: the replay's lanes.
        lane: the index of this writer's lane.
        records: staging, uint8 [2, record bytes]: the transition's record, then the boundary row's.
        lock: for a shared lane, (descriptor, byte, longest wait of an append for the lock in seconds).
    """

    def __init__(
        self, lanes: NativeLanes, lane: int, records: Bytes, lock: tuple[int, int, float] | None = None
    ) -> None:
        self._keep = lanes, records
        self._raw = ffi.new("struct mc_writer *")
        if lock is not None:
            self._raw.lock_fd, self._raw.lock_offset, seconds = lock
            self._raw.lock_wait_ns = int(seconds * 1e9)
        lib.mc_lanes_nth(lanes.raw, lane, ffi.addressof(self._raw, "lane"))
        self._records = _pointer(records)
        self._raw.records = self._records
        code = lib.mc_writer_open(self._raw)
        if code:
            raise _error(code)
        # The hot path calls these two directly, and passes a negative result to `fail`.
        self.add_row = lib.mc_writer_add
        self.raw = self._raw

    def rows_adder(self, records: Bytes, ends: Bytes, boundaries: bool) -> AddRows:
        """A callable that appends n staged rows: records uint8 [n, record bytes], ends uint8 [3, n]."""
        return AddRows(self._raw, records, ends, boundaries)

    def new_episode(self) -> None:
        """Marks the next row as the first of an episode."""
        self._raw.age = 0

    def close(self) -> None:
        """Closes the writer: the C core refuses every later add."""
        self._raw.closed = 1

    @property
    def closed(self) -> bool:
        return bool(self._raw.closed)


class AddRows:
    """Appends n staged rows whose addresses were taken once; `frames` are the large fields' arrays.

    Returns: the first row's ticket, or a negative code for `NativeWriter.fail`.
    """

    def __init__(self, raw: Any, records: Bytes, ends: Bytes, boundaries: bool) -> None:
        self._raw = raw
        self._rows = len(records)
        self._records = _pointer(records)
        self._ends = _pointer(ends)
        self._boundaries = boundaries
        self._sources = ffi.new("void *[]", MAX_COLUMNS)

    def __call__(self, frames: list[NDArray[Any]]) -> int:
        if frames:
            keep = [ffi.from_buffer(frame) for frame in frames]
            self._sources[1 : 1 + len(keep)] = keep
        ticket: int = lib.mc_writer_add_rows(
            self._raw, self._rows, self._records, self._sources, self._ends, self._boundaries
        )
        return ticket


class NativeVector(_WritingEnd):
    """The writing ends of several lanes, for at most one row a lane in each call; the caller holds the lanes' locks.

    Args:
        lanes: the replay's lanes.
        numbers: the lanes of the writers, in their order.
        records: staging, uint8 [2 * lanes, record bytes]: each row's record, then its boundary row's.
        blank: by column, a row of it for boundary rows that were given none.
        final_needed: whether a truncated row needs a boundary row.
    """

    def __init__(
        self, lanes: NativeLanes, numbers: Sequence[int], records: Bytes, blank: dict[int, Bytes], final_needed: bool
    ) -> None:
        self._writers = ffi.new("struct mc_writer[]", len(numbers))
        blanks = {column: _pointer(row) for column, row in blank.items()}
        self._keep = lanes, blanks
        for i, lane in enumerate(numbers):
            writer = ffi.addressof(self._writers, i)
            lib.mc_lanes_nth(lanes.raw, lane, ffi.addressof(writer, "lane"))
            for column, row in blanks.items():
                writer.final_frames[column] = row
            code = lib.mc_writer_open(writer)
            if code:
                raise _error(code)
        self._records = _pointer(records)
        self._raw = ffi.new("struct mc_vector *")
        self._raw.writers, self._raw.records = self._writers, self._records
        self._raw.final_needed = final_needed
        self._raw.count = len(numbers)

    def rows_adder(self, which: Ints, ends: Bytes, tickets: Ints) -> AddVector:
        """A callable that appends n staged rows; see AddVector."""
        return AddVector(self._raw, which, ends, tickets)

    def new_episode(self, which: Iterable[int]) -> None:
        """Marks the next rows of these writers, by index, as the first of an episode."""
        for i in which:
            self._writers[i].age = 0

    def close(self) -> None:
        """Closes the writers: the C core refuses every later add."""
        self._raw.count = 0

    @property
    def closed(self) -> bool:
        return bool(self._raw.count == 0)


class AddVector:
    """Appends n staged rows, one to each of n lanes; takes the addresses once.

    Args:
        which: int64 [n], the index of each row's writer.
        ends: uint8 [3, n]: terminated, truncated, left out.
        tickets: int64 [n], filled by each call: the rows' tickets, -1 for a row that was left out.
    """

    def __init__(self, raw: Any, which: Ints, ends: Bytes, tickets: Ints) -> None:
        self._raw = raw
        self._rows = len(which)
        self._which = _pointer(which, "int64_t[]")
        self._ends = _pointer(ends)
        self._tickets = _pointer(tickets, "int64_t[]")

    def __call__(self, finals: bool) -> int:
        """Returns 0, or a negative code for `NativeVector.fail`; `finals`: ended rows have boundary rows."""
        code: int = lib.mc_vector_add(self._raw, self._rows, self._which, self._ends, finals, self._tickets)
        return code

    def check(self, finals: bool) -> int:
        """The code of a call, without its writes."""
        code: int = lib.mc_vector_check(self._raw, self._rows, self._which, self._ends, finals)
        return code


class Event:
    """A futex on which a process sleeps until others have committed enough rows, or freed room for them."""

    def __init__(self, memory: Bytes, offset: int = 0) -> None:
        self._memory = _pointer(memory)
        self._event = self._memory + offset

    def prepare(self, amount: int) -> int:
        """Announces a waiter for `amount` units; check the missing amount again between this and `wait`."""
        return int(lib.mc_event_prepare(self._event, min(amount, EVERYTHING)))

    def wait(self, seen: int, seconds: float) -> None:
        """Sleeps until the announced amount has come since `prepare`, or until the timeout."""
        code = lib.mc_event_wait(self._event, seen, max(0, int(seconds * 1e9)))
        if code not in (0, -errno.ETIMEDOUT, -errno.EINTR):
            raise _error(code)

    def notify(self, amount: int = EVERYTHING) -> None:
        """Reports that `amount` units have come; wakes all waiters once any waiter's amount is complete."""
        lib.mc_event_notify(self._event, min(amount, EVERYTHING))


class Words:
    """64-bit words in shared memory; one process writes each word, any process reads it."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = _pointer(memory)

    def load(self, index: int) -> int:
        return int(lib.mc_word_load(self._memory, index))

    def loader(self, index: int) -> Callable[[], int]:
        """A callable that loads one word."""
        return partial(lib.mc_word_load, self._memory, index)

    def store(self, index: int, value: int) -> None:
        lib.mc_word_store(self._memory, index, value)

    def add(self, index: int, more: int) -> None:
        """For the word's writer only. Wraps modulo 2^64, so that a damaged word raises where it is read, not here."""
        lib.mc_word_add(self._memory, index, more)

    def sum(self, first: int, count: int, step: int) -> int:
        """The sum of the `count` words first, first + step, ..., modulo 2^64."""
        return int(lib.mc_words_sum(self._memory + 8 * first, count, 8 * step))


def try_lock(fd: int, offset: int, exclusive: bool) -> bool:
    """Locks one byte for fd's open file description; False if another one holds it."""
    code = lib.mc_lock_try(fd, offset, exclusive)
    if code == -errno.EAGAIN:
        return False
    if code:
        raise OSError(-code, os.strerror(-code))
    return True


def is_locked(fd: int, offset: int) -> bool:
    """Whether an open file description other than fd's holds a lock of one byte."""
    code = lib.mc_lock_held(fd, offset)
    if code < 0:
        raise OSError(-code, os.strerror(-code))
    return bool(code)
