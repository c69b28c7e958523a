"""A ring of rows with freely named fields that an object carries into every process: what the compat buffers share.

The rows lie in one shared lane of a ReplayBuffer. A ring is cleared by raising its base: rows of tickets below the base
no longer count. Positions in the ring are counted from the base, so that a cleared ring fills from position 0 again.

    tickets    0 ... base ........ lo ......... hi       position of ticket t = (t - base) mod capacity
                cleared | overwritten | held   |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from .._native import LINE, Words
from ..errors import LaneBusy, MarlcoreError
from ..files import File
from ..kernels import columns
from ..record import Place
from ..replay import ReplayBuffer
from ..shared import Shared
from ..shm import Segment, SegmentHandle, invalidate_after_fork
from ..spec import Field
from ..writer import Writer
from .fields import append, spec_of

__all__ = ["MARK", "Ints", "Ring", "Rows", "Window"]

BASE, MARK = range(2)  # words: the base, of whoever holds the marks' lock; one of the buffer's own, of its learner
WORDS = LINE // 8
ROUNDS = 1000
NAP_S = 0.001
PATIENCE_S = 10.0  # for a writer that was stopped inside an add; one that was killed holds up nobody

Ints = NDArray[np.int64]
Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Window:
    """The tickets that a ring held at one moment: [lo, hi), counted from base."""

    lo: int
    hi: int
    base: int
    capacity: int

    @property
    def stored(self) -> int:
        """Positions that were written since the ring was cleared."""
        return min(self.hi - self.base, self.capacity)

    @property
    def head(self) -> int:
        """The position that is written next."""
        return (self.hi - self.base) % self.capacity

    def tickets(self, positions: Ints) -> Ints:
        """The newest ticket at each position, from 0 to stored - 1."""
        oldest = self.hi - self.stored
        found: Ints = oldest + (positions - (oldest - self.base)) % self.capacity
        return found

    def positions(self, tickets: Ints) -> Ints:
        """Where tickets lie in the ring."""
        found: Ints = (tickets - self.base) % self.capacity
        return found


class _Lane(ReplayBuffer):
    """A replay of one lane, read by ticket."""

    def _understand(self, segment: Segment) -> None:
        super()._understand(segment)
        self._edges = np.zeros((2, 1), np.int64)
        self._read_edges = self._lanes.windows(self._edges[0], self._edges[1])
        self._body = segment.body
        self._places = {place.name: self._place(place) for place in self._layout.of_role("extra")}

    def _place(self, place: Place) -> tuple[tuple[int, int, int], Field]:
        """Offset of a field's first row, stride and size; and the field."""
        offset = self._geometry.column_offset(place.column) + place.offset
        return (offset, self._geometry.stride(place.column), place.field.nbytes), place.field

    def edges(self) -> tuple[int, int]:
        """The tickets [lo, hi) that the lane holds."""
        self.check_open()
        self._read_edges()
        return int(self._edges[0, 0]), int(self._edges[1, 0])

    def gather(self, tickets: Ints, names: Iterable[str]) -> tuple[Rows, NDArray[np.bool_]]:
        """Copies of the named fields of tickets, int64 [n] below hi, and whether each was whole: bool [n]."""
        self.check_open()
        tickets = np.ascontiguousarray(tickets)
        count, nbytes = len(tickets), 0
        table, carved = [], []
        for name in names:
            place, field = self._places[name]
            table.append((*place, nbytes))
            carved.append((name, field, nbytes))
            nbytes += -(-count * field.nbytes // LINE) * LINE
        out = np.empty(nbytes, np.uint8)
        columns.gather(self._body, np.array(table, np.int64), self.capacity, tickets, out)
        ok = np.zeros(count, np.uint8)
        self._lanes.validator(np.zeros(count, np.int64), tickets, ok)(count)
        rows = {name: np.ndarray((count, *field.shape), field.numpy, out, at) for name, field, at in carved}
        return rows, ok.view(np.bool_)

    def close(self) -> None:
        self._body = np.empty(0, np.uint8)
        super().close()


class _Marks(Shared):
    """Words beside a ring."""

    kind = "ring marks"

    def _understand(self, segment: Segment) -> None:
        self._words = Words(segment.body[: 8 * WORDS])
        self.load, self.store = self._words.load, self._words.store

    @classmethod
    def create(cls) -> _Marks:
        return cls(Segment.create("marks", {"kind": cls.kind}, 8 * WORDS))

    def lock(self) -> File:
        """An open file that holds the right to write the words until it is closed or its process dies.

        Raises: LaneBusy: a process that was stopped holds it.
        """
        for _ in range(ROUNDS):
            held = self._segment.lock(1)
            if held is not None:
                return held
            time.sleep(NAP_S)
        raise LaneBusy(f"{self._segment.path}: a process that does not go on is clearing the ring")


class Ring:
    """Rows of named fields in shared memory, for every process that has the object, whatever started it.

    Not for several threads at once.

    Args:
        fields: the fields of a row; any names.
        capacity: rows.

    Raises: ValueError, TypeError: the capacity or a field is out of range. SharedMemoryFull: there is no room.
    """

    def __init__(self, fields: Mapping[str, Field], capacity: int) -> None:
        self.fields = dict(fields)
        self.capacity = capacity
        self._stored_as = {name: f"f{i}" for i, name in enumerate(self.fields)}
        spec = spec_of({stored: self.fields[name] for name, stored in self._stored_as.items()})
        self._open(cast(_Lane, _Lane.create(spec, capacity, name="ring")), _Marks.create())

    def _open(self, rows: _Lane, marks: _Marks) -> None:
        self._handles: tuple[SegmentHandle, SegmentHandle] = (rows.handle, marks.handle)
        self._attached: tuple[_Lane, _Marks] | None = (rows, marks)
        self._writer: Writer | None = None
        invalidate_after_fork(self)

    def forked(self) -> None:
        """In a forked child: the next use attaches anew."""
        self._attached = self._writer = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_attached": None, "_writer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        invalidate_after_fork(self)

    @property
    def rows(self) -> _Lane:
        return self._attach()[0]

    @property
    def marks(self) -> _Marks:
        return self._attach()[1]

    def _attach(self) -> tuple[_Lane, _Marks]:
        if self._attached is None:
            self._attached = _Lane.attach(self._handles[0]), _Marks.attach(self._handles[1])
        return self._attached

    def window(self) -> Window:
        """What the ring holds now."""
        rows, marks = self._attach()
        base = marks.load(BASE)
        while True:
            lo, hi = rows.edges()
            before, base = base, marks.load(BASE)
            if base == before:  # otherwise hi may count rows that came after a clear of another process
                return Window(max(lo, base), hi, base, self.capacity)

    def append(self, rows: Mapping[str, NDArray[Any]], count: int) -> int:
        """Adds count rows, all or none, each field as [count, *shape] of its dtype; the first one's ticket.

        Raises: TimeoutError: another process was stopped inside an add; nothing was added.
        """
        stored = {stored_as: rows[name] for name, stored_as in self._stored_as.items()}
        if self._writer is None:
            self._writer = self.rows.writer(0, shared=True, timeout=PATIENCE_S)
        return append(self._writer, stored, count)

    def gather(self, tickets: Ints, *names: str) -> tuple[Rows, NDArray[np.bool_]]:
        """Copies of the named fields, or all, of tickets, int64 [n] below hi, and whether each was whole: bool [n]."""
        stored_as = {name: self._stored_as[name] for name in names or self.fields}
        rows, ok = self.rows.gather(tickets, stored_as.values())
        return {name: rows[stored] for name, stored in stored_as.items()}, ok

    def whole(self, groups: int, draw: Callable[[int], Ints], *names: str) -> tuple[Rows, Ints]:
        """Copies of groups of rows that were all whole; a group that a writer overwrote meanwhile is drawn again.

        Args:
            groups: how many.
            draw: called with a number of groups, gives their tickets, [number, rows of a group], or none at all when
                there is nothing to draw at the moment.
            names: the fields to copy; all when none is named.

        Returns: each field [groups, rows of a group, *shape], and the tickets [groups, rows of a group].

        Raises: MarlcoreError: a writer overwrote every draw, or died while it overwrote the whole ring.
        """
        todo = np.arange(groups)
        found: Rows = {}
        for _ in range(ROUNDS):
            fresh = draw(len(todo))
            if len(fresh) < len(todo):
                time.sleep(NAP_S)
                continue
            rows, ok = self.gather(fresh.ravel(), *names)
            rows["tickets"] = fresh.ravel()
            for name, part in rows.items():
                part = part.reshape(*fresh.shape, *part.shape[1:])
                if len(todo) == groups:
                    found[name] = part
                else:
                    found[name][todo] = part
            todo = todo[~ok.reshape(fresh.shape).all(axis=1)]
            if not len(todo):
                return found, found.pop("tickets")
        raise MarlcoreError(f"{self.rows!r}: writers overwrote every draw; use a larger capacity")

    def position(self, ticket: int) -> int:
        """Where a ticket lies in the ring."""
        return (ticket - self.marks.load(BASE)) % self.capacity

    def clear(self) -> None:
        """Forgets every row committed until now. An add of another process at the same time lands on either side."""
        with self.marks.lock():
            self.marks.store(BASE, self.rows.edges()[1])

    def close(self) -> None:
        """Lets go of the memory; what its creator closes disappears."""
        if self._attached is not None:
            for shared in self._attached:
                shared.close()
