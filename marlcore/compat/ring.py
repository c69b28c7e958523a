"""The common ring of the compat buffers: rows of arbitrary named fields in an object that any process can use.

The rows lie in one shared lane of a ReplayBuffer. Clearing the ring raises its base: rows with tickets below the base
no longer count. Positions count from the base, so a cleared ring fills from position 0 again.

    tickets    0 ... base ........ lo ......... hi       position of ticket t = (t - base) mod capacity
                cleared | overwritten | held   |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ..errors import LaneBusy, MarlcoreError
from ..kernels import columns
from ..kernels.plan import COLUMN
from ..memory import LINE, File, Segment, SegmentHandle, Shared, Words, claim, invalidate_after_fork, writer_lock
from ..spec import Field
from ..transitions import address_of
from .fields import spec_of
from .inplace import InPlace
from .rows import RowWriter

__all__ = ["MARK", "Held", "Ints", "Ring", "Rows"]

# Words: the base, written by the holder of the marks' lock; a word of the buffer, written by its learner
BASE, MARK = range(2)
WORDS = LINE // 8
ROUNDS = 1000
NAP_S = 0.001
PATIENCE_S = 10.0  # for a writer stopped inside an add; a killed one does not block

Ints = NDArray[np.int64]
Rows = dict[str, NDArray[Any]]


class Held(NamedTuple):
    """The tickets that a ring held at one moment: [lo, hi), counted from base."""

    lo: int
    hi: int
    base: int
    capacity: int

    @property
    def stored(self) -> int:
        """Positions written since the ring was cleared."""
        return min(self.hi - self.base, self.capacity)

    @property
    def head(self) -> int:
        """The next position to be written."""
        return (self.hi - self.base) % self.capacity

    def tickets(self, positions: Ints) -> Ints:
        """The newest ticket at each position, from 0 to stored - 1."""
        head = self.head
        found: Ints = positions + (self.hi - head)
        if self.stored == self.capacity:  # from the head on, tickets of the lap before
            found -= self.capacity * (positions >= head)
        return found

    def positions(self, tickets: Ints) -> Ints:
        """The positions of tickets in the ring."""
        found: Ints = (tickets - self.base) % self.capacity
        return found


class _Lane(InPlace):
    """A replay of one lane, read by ticket."""

    _spills = True

    def _understand(self, segment: Segment) -> None:
        super()._understand(segment)
        self._lo, self._hi = (edge.data for edge in self._edges)
        self._body = segment.body
        self._places = {place.name: place for place in self._layout.of_role("extra")}
        self.stored_as: Mapping[str, str] = {name: name for name in self._places}  # by the callers' names
        self._copies: dict[tuple[str, ...], _Copy] = {}

    def edges(self) -> tuple[int, int]:
        """The lane's tickets [lo, hi)."""
        self.check_open()
        self._read_edges()
        return self._lo[0], self._hi[0]

    def gather(self, tickets: Ints, names: tuple[str, ...]) -> tuple[Rows, NDArray[np.bool_] | None]:
        """Copies of the named fields for tickets, int64 [n] below hi, and whether each was whole: bool [n].

        None means that all were whole.
        """
        self.check_open()
        copy = self._copies.get(names)
        if copy is None or copy.rows != len(tickets):
            copy = self._copies[names] = self._copy(names, len(tickets))
        out = np.empty(copy.nbytes, np.uint8)
        copy.tickets[:] = tickets
        columns.gather(copy.columns, self.capacity, copy.tickets, out)
        rows = {name: np.ndarray(shape, dtype, out, at) for name, shape, dtype, at in copy.carved}
        return rows, copy.ok.astype(np.bool_) if copy.validate(copy.rows) else None

    def _copy(self, names: tuple[str, ...], count: int) -> _Copy:
        fields, carved, nbytes = np.zeros(len(names), COLUMN), [], 0
        body = address_of(self._body)
        for i, name in enumerate(names):
            place = self._places[self.stored_as[name]]
            base = self._geometry.column_offset(place.column) + place.offset
            fields[i] = (body + base, self._geometry.stride(place.column), place.field.nbytes, nbytes, 0)
            carved.append((name, (count, *place.field.shape), place.field.numpy, nbytes))
            nbytes += -(-count * place.field.nbytes // LINE) * LINE
        tickets, ok = np.zeros(count, np.int64), np.zeros(count, np.uint8)
        validate = self._lanes.validator(np.zeros(count, np.int64), tickets, ok)
        return _Copy(count, nbytes, fields, carved, tickets, ok, validate)

    def named(self, name: str) -> NDArray[Any]:
        """The named field of every row in place, [capacity, *shape]; only for the one process that writes them."""
        found: NDArray[Any] = self.column(self._places[self.stored_as[name]])[0]
        return found

    def row_writer(self, shared: bool) -> RowWriter:
        """The writing end, for this process alone or shared. Raises LaneBusy: a living writer excludes this one."""
        claimed = claim(self._segment, self._lanes, 0, shared)
        return RowWriter(self._lanes, self._layout, claimed, self.stored_as, shared, PATIENCE_S)

    def close(self) -> None:
        self._body = np.empty(0, np.uint8)
        self._copies.clear()
        super().close()


class _Copy(NamedTuple):
    """The plan of a copy of some fields of `rows` rows, with arrays whose addresses were taken once."""

    rows: int
    nbytes: int
    columns: NDArray[np.void]  # of kernels.columns.gather
    carved: list[tuple[str, tuple[int, ...], np.dtype[Any], int]]  # name, shape, dtype and offset of each copied field
    tickets: Ints
    ok: NDArray[np.uint8]
    validate: Callable[[int], int]


class _Marks(Shared):
    """Words beside a ring."""

    kind = "ring marks"

    def _understand(self, segment: Segment) -> None:
        self._words = Words(segment.body[: 8 * WORDS])
        self.load, self.store = self._words.load, self._words.store
        self.load_base = self._words.loader(BASE)
        # For readers at each add: takes a tenth of a C call, whose memory order does not matter here.
        self.base_word: memoryview = segment.body[8 * BASE : 8 * BASE + 8].view(np.int64).data

    @classmethod
    def create(cls) -> _Marks:
        return cls(Segment.create("marks", {"kind": cls.kind}, 8 * WORDS, spill=True))

    def lock(self) -> File:
        """An open file that holds the right to write the words, until it is closed or its process dies.

        Raises: LaneBusy: a stopped process holds it.
        """
        for _ in range(ROUNDS):
            held = self._segment.lock(writer_lock(0))
            if held is not None:
                return held
            time.sleep(NAP_S)
        raise LaneBusy(f"{self._segment.path}: a stopped process is clearing the ring")


class Ring:
    """Rows of named fields in shared memory, for every process that has the object, however it was started.

    One thread at a time may use it. Where /dev/shm has no room, it takes unlinked files in the temporary directory;
    other processes attach to it while the process that made it lives.

    Args:
        fields: the fields of a row; any names.
        capacity: rows.
        shared: any number of processes append, each under a lock, which costs two system calls per append. Otherwise
            the first one to append keeps the right, until it releases or closes the ring or ends.

    Raises: ValueError, TypeError: the capacity or a field is out of range. SharedMemoryFull: no room for the ring
        there either.
    """

    def __init__(self, fields: Mapping[str, Field], capacity: int, *, shared: bool) -> None:
        self.fields = dict(fields)
        self.capacity = capacity
        self._shared = shared
        self._names = tuple(self.fields)
        self._stored_as = {name: f"f{i}" for i, name in enumerate(self._names)}
        spec = spec_of({stored: self.fields[name] for name, stored in self._stored_as.items()})
        self._open(cast(_Lane, _Lane.create(spec, capacity, name="ring")), _Marks.create())

    def _open(self, rows: _Lane, marks: _Marks) -> None:
        self._handles: tuple[SegmentHandle, SegmentHandle] = (rows.handle, marks.handle)
        self._attached: tuple[_Lane, _Marks] | None = (rows, marks)
        rows.stored_as = self._stored_as
        self._writer: RowWriter | None = None
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
            self._attached[0].stored_as = self._stored_as
        return self._attached

    @property
    def load_base(self) -> Callable[[], int]:
        """A callable that loads the base, the first ticket that counts."""
        return self.marks.load_base

    @property
    def base_word(self) -> memoryview:
        """The same as an int64 in shared memory, which may be a moment old."""
        return self.marks.base_word

    def window(self) -> Held:
        """The ring's current window."""
        rows, marks = self._attach()
        base = marks.load_base()
        while True:
            lo, hi = rows.edges()
            before, base = base, marks.load_base()
            if base == before:  # otherwise hi may include rows added after another process's clear
                return Held(max(lo, base), hi, base, self.capacity)

    @property
    def writer(self) -> RowWriter:
        """This process's writing end.

        Raises: LaneBusy: another process holds the right to append.
        """
        if self._writer is None:
            try:
                self._writer = self.rows.row_writer(self._shared)
            except LaneBusy:
                raise LaneBusy("add: expected no other process to add until it released or closed the buffer") from None
        return self._writer

    def release(self) -> None:
        """Lets another process append; repeated calls are harmless."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def append(self, rows: Mapping[str, Any], count: int) -> int:
        """Adds count rows, all or none, each field [count, *shape]; returns the first ticket.

        NumPy converts the dtypes.

        Raises: TimeoutError: another process was stopped inside an add; LaneBusy: see `writer`. Nothing was added.
        """
        writer = self.writer
        if count > 1:
            return writer.append_batch(rows, count)
        for name, view in writer.row.items():
            view[...] = rows[name]
        return writer.append()

    def gather(self, tickets: Ints, *names: str) -> tuple[Rows, NDArray[np.bool_] | None]:
        """Copies of the named fields, or all, for tickets, int64 [n] below hi, and whether each was whole: bool [n].

        None means that all were whole.
        """
        return self.rows.gather(tickets, names or self._names)

    def at(self, positions: Ints, *names: str) -> Rows:
        """Copies of the named fields, or all, at positions, [*positions.shape, *shape]; zeros at empty positions."""
        window = self.window()
        held = positions < window.stored
        rows, ok = self.gather(window.tickets(positions[held]), *names)
        if ok is not None:
            held[held] = ok
        found: Rows = {}
        for name, copied in rows.items():
            found[name] = np.zeros((*positions.shape, *copied.shape[1:]), copied.dtype)
            found[name][held] = copied if ok is None else copied[ok]
        return found

    def snapshot(self, *names: str) -> Rows:
        """Read-only copies of the named fields, or all, by position; zeros at empty positions."""
        found = self.at(np.arange(self.capacity), *names)
        for array in found.values():
            array.flags.writeable = False
        return found

    def whole(self, groups: int, draw: Callable[[int], Ints], *names: str) -> tuple[Rows, Ints]:
        """Copies of groups of rows, all whole; a group that a writer overwrote meanwhile is drawn again.

        Args:
            groups: the number of groups.
            draw: called with a number of groups; returns their tickets, [number, rows per group], or none if nothing
                can be drawn at the moment.
            names: the fields to copy; by default all.

        Returns: each field [groups, rows of a group, *shape], and the tickets [groups, rows of a group].

        Raises: MarlcoreError: a writer overwrote every draw, or died while it overwrote the whole ring.
        """
        found: Rows = {}
        todo: Ints | None = None  # the overwritten groups; at first None for all
        for _ in range(ROUNDS):
            missing = groups if todo is None else len(todo)
            fresh = draw(missing)
            if len(fresh) < missing:
                time.sleep(NAP_S)
                continue
            rows, ok = self.gather(fresh.ravel(), *names)
            rows["tickets"] = fresh
            for name, part in rows.items():
                part = part.reshape(*fresh.shape, *part.shape[1:]) if part is not fresh else part
                if todo is None:
                    found[name] = part
                else:
                    found[name][todo] = part
            if ok is None:
                return found, found.pop("tickets")
            torn = ~ok.reshape(fresh.shape).all(axis=1)
            todo = np.flatnonzero(torn) if todo is None else todo[torn]
        raise MarlcoreError(f"{self.rows!r}: writers overwrote every draw; use a larger capacity")

    def position(self, ticket: int) -> int:
        """The position of a ticket in the ring."""
        return (ticket - self.marks.load_base()) % self.capacity

    def clear(self) -> None:
        """Deletes every row committed so far; a concurrent add of another process may fall on either side."""
        with self.marks.lock():
            self.marks.store(BASE, self.rows.edges()[1])

    def close(self) -> None:
        """Releases the memory; if the creator closes it, the memory disappears."""
        if self._writer is not None:
            self._writer.close()
        if self._attached is not None:
            for shared in self._attached:
                shared.close()
