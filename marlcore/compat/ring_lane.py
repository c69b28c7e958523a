"""The lane of a ring: it appends and copies rows of named fields, and computes the addresses for its C calls once.

The fields are the extras of a replay whose other fields are unused. To append several rows, only small fields are
first copied to a staging array; large fields go from the caller's array straight to the lane, since a second copy would
halve the rate of four writers.
"""

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import LaneBusy
from ..memory import File, Segment, Words, slot_lock
from ..spec import Field
from ..transitions import Writer
from .replays import RowCopy, Rows, ViewedReplay, room_for, spec_of

# Words beside the lane: the base, written by the holder of the words' lock; a word for the buffer's own use
BASE, MARK = range(2)
ROUNDS = 1000
NAP_S = 0.001
PATIENCE_S = 10.0  # for a writer stopped inside an add; a killed one does not block

Ints = NDArray[np.int64]
Path = str | os.PathLike[str]


class RingLane(ViewedReplay):
    """One lane of rows that are read by ticket, with a cache line of words beside it.

    `base` and `mark` read the words BASE and MARK as plain int64 in shared memory, ten times faster than the C call
    `load_base`, but the values may be a moment old. `places` maps a field's name to its place in a row.
    """

    kind = "ring"
    _spills = True

    def _understand(self, segment: Segment) -> None:
        super()._understand(segment)
        stored = {place.name: place for place in self._mapped.layout.of_role("extra")}
        self._lo, self._hi = (edge.data for edge in self._edges)
        self.places = {name: stored[f"f{i}"] for i, name in enumerate(segment.description["names"])}
        geometry = self._mapped.geometry
        line = segment.body[geometry.slot_offset(0) : geometry.slot_offset(1)]
        self.words = Words(line)
        self.base, self.mark = (line[8 * word : 8 * word + 8].view(np.int64).data for word in (BASE, MARK))
        self.load_base = self.words.loader(BASE)
        self._copies: dict[tuple[str, ...], _Copy] = {}

    @classmethod
    def of(cls, fields: Mapping[str, Field], capacity: int, path: Path | None = None) -> "RingLane":
        spec = spec_of({f"f{i}": field for i, field in enumerate(fields.values())})
        rows = cls._lane_rows(spec, capacity, 1)
        return cls._create(spec, 1, rows, "ring", path, limiter=None, names=[*fields])

    @classmethod
    def _slots(cls, description: dict[str, Any]) -> int:
        return 1

    def edges(self) -> tuple[int, int]:
        self.check_open()
        self._read_edges()
        return self._lo[0], self._hi[0]

    def gather(self, tickets: Ints, names: tuple[str, ...]) -> tuple[Rows, NDArray[np.bool_] | None]:
        self.check_open()
        count, copy = len(tickets), self._copies.get(names)
        if copy is None or not copy.suits(count):
            copy = self._copies[names] = _Copy(self, names, room_for(count))
        return copy(tickets)

    def whole(self, tickets: Ints) -> NDArray[np.bool_] | None:
        """Returns for each row whether its copy, made before this call, is whole: bool [n]; None if all are whole."""
        count = len(tickets)
        ok = np.zeros(count, np.uint8)
        validate = self._mapped.native.validator(np.zeros(count, np.int64), tickets, ok)
        return ok.astype(np.bool_) if validate(count) else None

    def writer(self, shared: bool) -> "RingWriter":  # type: ignore[override]
        """Returns a writer, the only one unless `shared`. Raises LaneBusy if a living process may already write."""
        return self._opened(lambda lock: RingWriter(self, lock, shared), [0], PATIENCE_S, shared)

    def lock_words(self) -> File:
        """Returns an open file; until it is closed or this process dies, no other process may write BASE."""
        for _ in range(ROUNDS):
            lock = self._segment.lock(slot_lock(1, 0))
            if lock is not None:
                return lock
            time.sleep(NAP_S)
        raise LaneBusy(f"{self._segment.path}: a stopped process is clearing the ring")

    def close(self) -> None:
        self._copies.clear()
        super().close()


class _Copy(RowCopy[str]):
    def __init__(self, lane: RingLane, names: tuple[str, ...], room: int) -> None:
        super().__init__(lane, {name: lane.places[name] for name in names}, room)
        self._tickets, self._ok = np.zeros(room, np.int64), np.zeros(room, np.uint8)
        self._validate = lane._mapped.native.validator(np.zeros(room, np.int64), self._tickets, self._ok)

    def __call__(self, tickets: Ints) -> tuple[Rows, NDArray[np.bool_] | None]:
        count = len(tickets)
        self._tickets[:count] = tickets
        rows = self.rows(self._tickets[:count])
        return rows, self._ok[:count].astype(np.bool_) if self._validate(count) else None


class RingWriter(Writer):
    """Appends rows to the lane. `row` holds, by name, a view [1, *shape] of each field of the next row to append."""

    def __init__(self, lane: RingLane, claim: File, shared: bool) -> None:
        super().__init__(lane._mapped, 0, claim, shared, PATIENCE_S, None)
        # The oldest ticket held now, and the ticket of the next row unless another process appends before.
        self.first, self.next = lane.edges()
        self._places = lane.places
        self._append = partial(self._add_row, self._raw, 0)
        self.row, frames = self._views(self._records[:1])
        self._frames = [self._native.set_frame(k, frame) for k, frame in enumerate(frames, 1)]
        self._batch: _Batch | None = None

    def append(self) -> int:
        """Appends `row` and returns its ticket. Raises TimeoutError if another writer is stopped inside an append."""
        ticket: int = self._append()
        if ticket < 0:
            ticket = self._again(ticket, self._append, None, "add")
        self.next = ticket + 1
        return ticket

    def append_batch(self, rows: Mapping[str, Any], count: int) -> int:
        """Appends `count` rows, all or none, from arrays [count, *shape] by field; returns the first ticket."""
        batch = self._batch
        if batch is None or batch.rows != count:
            records = np.zeros((count, self._records.shape[1]), np.uint8)
            add = self._native.rows_adder(records, np.zeros((3, count), np.uint8), False)
            batch = self._batch = _Batch(count, *self._views(records), add)
        frames = batch.frames.copy()
        for name, view in batch.views.items():
            column, values = self._places[name].column, rows[name]
            alike = column and values.__class__ is np.ndarray and values.flags.c_contiguous
            if alike and values.dtype == view.dtype and values.shape == view.shape:
                frames[column - 1] = values
            else:
                view[...] = values
        ticket: int = batch.add(frames)
        if ticket < 0:
            ticket = self._again(ticket, partial(batch.add, frames), None, "add")
        self.next = ticket + count
        return ticket

    def _views(self, records: NDArray[np.uint8]) -> tuple[Rows, list[NDArray[Any]]]:
        """Returns each field's staging array by name, [count, *shape], and a list of the large fields' staging arrays.

        Small fields lie in `records`, uint8 [count, bytes of a record].
        """
        frames = [place.field.zeros(len(records)) for place in self._view.layout.places if place.column]
        views = {name: place.views(records) for name, place in self._places.items() if not place.column}
        views |= {name: frames[place.column - 1] for name, place in self._places.items() if place.column}
        return views, frames


class _Batch(NamedTuple):
    rows: int
    views: Rows  # the staging arrays of all fields
    frames: list[NDArray[Any]]  # the staging arrays of the large fields
    add: Callable[[list[NDArray[Any]]], int]
