"""Binds the C core's writers of one lane and of several lanes, and its reader and writer of raw rows."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .native import MAX_COLUMNS, Bytes, Ints, NativeLanes, checked, ffi, lib, pointer_to

Coded = Callable[[bool], int]  # returns 0 or a negative code

# Words of a span and of a part: see csrc/api.h
LANE, AFTER, FIRST, ROWS = range(4)
PART_LANE, OFFSET, SPAN_ROWS, SKIP, TAKE, SEAM = range(6)
_SPANS, _PARTS = "struct mc_span[]", "struct mc_part[]"
_BOUNDARY_ROW = ffi.new("uint8_t[]", [0, 0, 1])  # the flags of one row: see `rows_adder`


class _WritingEnd:
    raw: Any  # the C core's struct

    def set_frame(self, column: int, frame: NDArray[Any], final: bool = False) -> Any:
        """Sets the array from which the next add takes a column's rows; keep the returned pointer until that add."""
        pointer = ffi.from_buffer(frame)
        (self.raw.final_frames if final else self.raw.frames)[column] = pointer
        return pointer


class NativeWriter(_WritingEnd):
    """The writing end of one replay lane; the caller holds the lane's lock, or names a lock to take for each append.

    `records`, uint8 [2, record bytes], holds the records that the next append takes: the transition's, then its
    boundary row's. `lock`, only for a shared lane, is (descriptor, byte, the most seconds that an append waits for the
    lock).
    """

    def __init__(
        self, lanes: NativeLanes, lane: int, records: Bytes, lock: tuple[int, int, float] | None = None
    ) -> None:
        self._keep = lanes, records
        self.raw = ffi.new("struct mc_writer *")
        if lock is not None:
            self.raw.lock_fd, self.raw.lock_offset, seconds = lock
            self.raw.lock_wait_ns = int(seconds * 1e9)
        lib.mc_lanes_nth(lanes.raw, lane, ffi.addressof(self.raw, "lane"))
        self._records = pointer_to(records)
        self.raw.records = self._records
        checked(lib.mc_writer_open(self.raw))
        self.add_row = lib.mc_writer_add  # the hot path calls it with `raw`, and gives a negative result to `error_of`

    def rows_adder(self, records: Bytes, ends: Bytes, boundaries: bool) -> Callable[[list[NDArray[Any]]], int]:
        """Returns a function that appends n staged rows, given the arrays of large fields.

        `records` is uint8 [n, record bytes]. `ends`, uint8 [3, n], has three flags for each row: terminated, truncated,
        and whether it is a boundary row. With `boundaries`, each truncated row must have a boundary row. The function
        returns the first row's ticket or a negative code.
        """
        raw, rows, records_at, ends_at = self.raw, len(records), pointer_to(records), pointer_to(ends)
        sources = ffi.new("void *[]", MAX_COLUMNS)

        def append(frames: list[NDArray[Any]]) -> int:
            if frames:
                keep = [ffi.from_buffer(frame) for frame in frames]
                sources[1 : 1 + len(keep)] = keep
            ticket: int = lib.mc_writer_add_rows(raw, rows, records_at, sources, ends_at, boundaries)
            return ticket

        return append

    def end_episode(self) -> int:
        """Appends the boundary row's record and frames alone; returns the row's ticket or a negative code."""
        record = self._records + self.raw.lane.column[0].stride
        ticket: int = lib.mc_writer_add_rows(self.raw, 1, record, self.raw.final_frames, _BOUNDARY_ROW, 0)
        return ticket

    def new_episode(self) -> None:
        """Marks the next row as the first of an episode."""
        self.raw.age = 0

    @property
    def in_episode(self) -> bool:
        """Whether the next row follows this writer's last one."""
        return bool(self.raw.age != 0)

    def close(self) -> None:
        self.raw.closed = 1

    @property
    def closed(self) -> bool:
        return bool(self.raw.closed)


class NativeVector(_WritingEnd):
    """The writing ends of several lanes, for at most one row a lane in each call; the caller holds the lanes' locks.

    `blank` maps a column to the bytes that a boundary row gets if it has no value of its own. `final_needed` tells
    whether a truncated row needs a boundary row.
    """

    def __init__(self, lanes: NativeLanes, numbers: Sequence[int], blank: dict[int, Bytes], final_needed: bool) -> None:
        self._writers = ffi.new("struct mc_writer[]", len(numbers))
        blanks = {column: pointer_to(row) for column, row in blank.items()}
        self._keep = lanes, blanks
        for i, lane in enumerate(numbers):
            writer = ffi.addressof(self._writers, i)
            lib.mc_lanes_nth(lanes.raw, lane, ffi.addressof(writer, "lane"))
            for column, row in blanks.items():
                writer.final_frames[column] = row
            checked(lib.mc_writer_open(writer))
        self.raw = ffi.new("struct mc_vector *")
        self.raw.writers = self._writers
        self.raw.final_needed = final_needed
        self.raw.count = len(numbers)

    def rows_adder(self, records: Bytes, which: Ints, ends: Bytes, tickets: Ints) -> tuple[Coded, Coded]:
        """Returns a function that appends a staged row to each of n lanes, and a function that only checks these rows.

        Both take a bool, whether ended rows have boundary rows, and return 0 or a negative code. `records`, uint8 [2 n,
        record bytes], holds each row's record, followed by its boundary row's. `which`, int64 [n], holds the index of
        each row's writer, and `ends`, uint8 [3, n], the flags terminated, truncated and left out. An append writes the
        rows' tickets to `tickets`, int64 [n]: -1 for a row that was left out.
        """
        raw, rows, records_at, ends_at = self.raw, len(which), pointer_to(records), pointer_to(ends)
        which_at, tickets_at = pointer_to(which, "int64_t[]"), pointer_to(tickets, "int64_t[]")

        def append(finals: bool) -> int:
            raw.records = records_at
            code: int = lib.mc_vector_add(raw, rows, which_at, ends_at, finals, tickets_at)
            return code

        def check(finals: bool) -> int:
            raw.records = records_at
            code: int = lib.mc_vector_check(raw, rows, which_at, ends_at, finals)
            return code

        return append, check

    def new_episode(self, which: Iterable[int]) -> None:
        """Makes the next row of each of these writers, given by index, the first of an episode."""
        for i in which:
            self._writers[i].age = 0

    def close(self) -> None:
        self.raw.count = 0

    @property
    def closed(self) -> bool:
        return bool(self.raw.count == 0)


class NativeRows:
    """Reads and appends raw rows; `spans`, int64 [n, 4], and `parts`, int64 [n, 6], are structs of csrc/api.h."""

    def __init__(self, lanes: NativeLanes) -> None:
        self._lanes = lanes

    def place(self, spans: Ints, room: int) -> tuple[Ints, int]:
        """Returns each span's offset, int64 [n], and all spans' bytes. Raises ValueError if these exceed `room`."""
        offsets = np.empty(len(spans), np.int64)
        at = pointer_to(offsets, "int64_t[]")
        total = int(lib.mc_spans_place(self._lanes.raw, len(spans), pointer_to(spans, _SPANS), room, at))
        if total < 0:
            raise ValueError(f"spans: expected rows of at most {room} bytes, got more")
        return offsets, total

    def read(self, spans: Ints, dest: Bytes) -> int:
        """Copies the spans' rows into `dest`, which has room for them; returns the number of bytes.

        Sets a span's number of rows to 0 if a writer overwrote them.
        """
        raw = pointer_to(spans, _SPANS)
        return checked(lib.mc_spans_read(self._lanes.raw, len(spans), raw, pointer_to(dest)))

    def append(self, parts: Ints, source: Bytes) -> None:
        """Appends parts of the spans in `source`, each part whole. The caller holds the lanes' locks."""
        raw = pointer_to(parts, _PARTS)
        checked(lib.mc_parts_append(self._lanes.raw, len(parts), raw, pointer_to(source)))

    def committed(self) -> Ints:
        """Returns the number of rows committed to each lane since its creation, int64 [lanes]."""
        lo, hi = np.zeros((2, self._lanes.count), np.int64)
        self._lanes.windows(lo, hi)()
        return hi
