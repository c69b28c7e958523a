"""The C core's lanes, events, words and locks: pointers are taken here, and return codes become exceptions here."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
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
EVERYTHING = 2**32 - 1  # more than anybody waits for

_LANES_KEPT = 1024  # pointers of so many lanes, however many there are

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


def _error(code: int) -> Exception:
    """The exception for a negative return code that is no ordinary result."""
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
    """A count of transitions, unless it is a code."""
    if count == -errno.ESTALE:
        raise MarlcoreError("writers overwrote each row that tells the count while it was read; use a larger capacity")
    if count < 0:
        raise _error(count)
    return count


def _lane_of(lanes: Any, lane: int) -> Any:
    """One of the lanes side by side of which `lanes` is the first."""
    raw = ffi.new("struct mc_lane *")
    lib.mc_lanes_nth(lanes, lane, raw)
    return raw


def _pointer(array: NDArray[Any], ctype: str = "uint8_t[]") -> Any:
    """The address of a C-contiguous array, which the result keeps alive."""
    return ffi.from_buffer(ctype, array)


class NativeLanes:
    """The lanes of one segment, as the C core sees them: what it costs does not grow with their number.

    Args:
        memory: the segment's body, uint8 [nbytes], mapped for as long as this object lives.
        count: lanes, side by side.
        capacity: rows of each lane.
        event: offset of the event line in `memory`.
        counters: offset of the first lane's counters.
        columns: (offset, size, stride, tickets a row) of each column of the first lane.
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
        """For the lane's writer: SegmentCorrupt when the counters contradict one another."""
        code = lib.mc_lane_check(self._nth(lane))
        if code:
            raise _error(code)

    def committed(self, lane: int) -> int:
        """Rows committed to the lane since it was created. Raises SegmentCorrupt: more than can be."""
        count = int(lib.mc_lane_committed(self._nth(lane)))
        if count < 0:
            raise _error(count)
        return count

    def transitions(self, lane: int) -> int:
        """Transitions that a replay lane holds, boundary rows not counted."""
        return _counted(lib.mc_lane_transitions(self._nth(lane)))

    def all_transitions(self) -> int:
        """Transitions that all lanes hold together."""
        return _counted(lib.mc_lanes_transitions(self.raw, self.count))

    def appender(self, lane: int, source: NDArray[Any]) -> AppendRow:
        """A call that appends the row in `source` to a lane of one column; for the lane's writer alone."""
        return AppendRow(self, self._nth(lane), source)

    def inserted(self) -> int:
        """Transitions ever written to all lanes of a replay with a limiter, boundary rows not counted."""
        return _counted(lib.mc_lanes_inserted(self.raw, self.count))

    def written(self, lane: int) -> int:
        """Transitions ever written to a lane of which no append fills the whole, boundary rows not counted."""
        return _counted(lib.mc_lanes_inserted(self._nth(lane), 1))

    def read(self, lane: int, ticket: int, rows: int, dest: NDArray[Any]) -> int:
        """Copies `rows` rows of column 0 from `ticket` on; 0, -EAGAIN (not yet) or -ESTALE (lapped)."""
        dests = ffi.new("void *[]", MAX_COLUMNS)
        dests[0] = pointer = _pointer(dest)
        code = int(lib.mc_lane_read(self._nth(lane), ticket, rows, dests))
        del pointer
        if code not in (0, -errno.EAGAIN, -errno.ESTALE):
            raise _error(code)
        return code

    def newest_reader(self, lane: int, dest: NDArray[Any]) -> NewestReader:
        """A call that copies the newest row of a lane of one column into `dest`."""
        return NewestReader(self, self._nth(lane), dest)

    def windows(self, lo: Ints, hi: Ints) -> Windows:
        """A call that fills lo and hi, int64 [lanes], with the tickets that each lane holds."""
        return Windows(self, lo, hi)

    def validator(self, lane: Ints, lowest: Ints, ok: Bytes) -> Validator:
        """A call that says of (lane, lowest ticket) pairs whether they are whole still."""
        return Validator(self, lane, lowest, ok)


class AppendRow:
    """Appends the row in a staging array, whose address was taken once."""

    def __init__(self, lanes: NativeLanes, raw: Any, source: NDArray[Any]) -> None:
        self._keep = lanes, source
        self._raw = raw
        self._row = _pointer(source.view(np.uint8))
        self._sources = ffi.new("void *[]", MAX_COLUMNS)
        self._sources[0] = self._row

    def __call__(self) -> None:
        code = lib.mc_lane_append(self._raw, 1, self._sources)
        if code:
            raise _error(code)


class NewestReader:
    """Copies the newest row: returns its ticket + 1, 0 when there is none, -ESTALE when it was lapped."""

    def __init__(self, lanes: NativeLanes, raw: Any, dest: NDArray[Any]) -> None:
        self._keep = lanes
        self._raw = raw
        self._dest = _pointer(dest.view(np.uint8))

    def __call__(self) -> int:
        return int(lib.mc_lane_read_newest(self._raw, self._dest))


class Windows:
    """Fills two arrays with the tickets [lo, hi) that each lane holds whole."""

    def __init__(self, lanes: NativeLanes, lo: Ints, hi: Ints) -> None:
        self._lanes = lanes
        self._lo = _pointer(lo, "int64_t[]")
        self._hi = _pointer(hi, "int64_t[]")

    def __call__(self) -> None:
        code = lib.mc_lanes_window(self._lanes.raw, self._lanes.count, self._lo, self._hi)
        if code:
            raise _error(code)


class Validator:
    """ok[i] = whether ticket lowest[i] of lane[i] is whole still, for the first n; counts those lapped."""

    def __init__(self, lanes: NativeLanes, lane: Ints, lowest: Ints, ok: Bytes) -> None:
        self._lanes = lanes
        self._lane = _pointer(lane, "int64_t[]")
        self._lowest = _pointer(lowest, "int64_t[]")
        self._ok = _pointer(ok)

    def __call__(self, n: int) -> int:
        return int(lib.mc_lanes_validate(self._lanes.raw, n, self._lane, self._lowest, self._ok))


class NativeWriter:
    """The writing end of one replay lane; the caller holds the lane's lock, or names the one to take for each append.

    Args:
        lanes: the replay's lanes.
        lane: which of them.
        records: staging, uint8 [2, record bytes]: the transition's record, then the boundary row's.
        lock: of a shared lane, (descriptor, byte, seconds at most that an append waits for it before it gives up).
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
        # The two that a hot path calls directly; a negative result goes to `fail`.
        self.add_row = lib.mc_writer_add
        self.raw = self._raw

    @staticmethod
    def fail(code: int) -> Exception:
        """The exception for a negative ticket."""
        return _error(code)

    def set_frame(self, column: int, frame: NDArray[Any], final: bool = False) -> Any:
        """Names the array that column takes its next row from; keep the result until the row is added."""
        pointer = ffi.from_buffer(frame)
        (self._raw.final_frames if final else self._raw.frames)[column] = pointer
        return pointer

    def rows_adder(self, records: Bytes, ends: Bytes, boundaries: bool) -> AddRows:
        """A call that appends n staged rows: records uint8 [n, record bytes], ends uint8 [3, n]."""
        return AddRows(self._raw, records, ends, boundaries)

    @property
    def policy_version(self) -> int:
        """The version of the weights that act; stored with each row, modulo 2^32."""
        return int(self._raw.policy_version)

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._raw.policy_version = version & 0xFFFFFFFF

    def new_episode(self) -> None:
        """The next row is an episode's first."""
        self._raw.age = 0

    def close(self) -> None:
        """Every later add is refused by the C core."""
        self._raw.lane.capacity = 0

    @property
    def closed(self) -> bool:
        return bool(self._raw.lane.capacity == 0)


class AddRows:
    """Appends n staged rows, whose addresses were taken once; `frames` are the large fields' arrays.

    The first row's ticket, or a negative code for `NativeWriter.fail`.
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


class Event:
    """A place to sleep until other processes have committed enough rows, or made room for them."""

    def __init__(self, memory: Bytes, offset: int = 0) -> None:
        self._memory = _pointer(memory)
        self._event = self._memory + offset

    def prepare(self, amount: int) -> int:
        """Announces a waiter that wants so much to come; look what is missing after this and before `wait`."""
        return int(lib.mc_event_prepare(self._event, min(amount, EVERYTHING)))

    def wait(self, seen: int, seconds: float) -> None:
        """Sleeps until what was wanted came after `prepare`, or the time is up."""
        code = lib.mc_event_wait(self._event, seen, max(0, int(seconds * 1e9)))
        if code not in (0, -errno.ETIMEDOUT, -errno.EINTR):
            raise _error(code)

    def notify(self, amount: int = EVERYTHING) -> None:
        """So much has come: wakes all who wait when it is the last of what one of them wants."""
        lib.mc_event_notify(self._event, min(amount, EVERYTHING))


class Words:
    """64-bit words in shared memory, each written by one process and read by any."""

    def __init__(self, memory: Bytes) -> None:
        self._memory = _pointer(memory)

    def load(self, index: int) -> int:
        return int(lib.mc_word_load(self._memory, index))

    def loader(self, index: int) -> Callable[[], int]:
        """A call that loads one word."""
        return partial(lib.mc_word_load, self._memory, index)

    def store(self, index: int, value: int) -> None:
        lib.mc_word_store(self._memory, index, value)

    def add(self, index: int, more: int) -> None:
        """For the word's writer alone; modulo 2^64, so that damage is no error here but where it is read."""
        lib.mc_word_add(self._memory, index, more)

    def sum(self, first: int, count: int, step: int) -> int:
        """The sum of the `count` words first, first + step, ..., modulo 2^64."""
        return int(lib.mc_words_sum(self._memory + 8 * first, count, 8 * step))


def try_lock(fd: int, offset: int, exclusive: bool) -> bool:
    """Locks one byte for the open file description of fd; False when somebody else holds it."""
    code = lib.mc_lock_try(fd, offset, exclusive)
    if code == -errno.EAGAIN:
        return False
    if code:
        raise OSError(-code, os.strerror(-code))
    return True


def is_locked(fd: int, offset: int) -> bool:
    """Whether another open file description than fd's holds a lock of one byte."""
    code = lib.mc_lock_held(fd, offset)
    if code < 0:
        raise OSError(-code, os.strerror(-code))
    return bool(code)
