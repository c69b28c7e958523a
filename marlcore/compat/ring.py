"""The ring behind the buffers of cpprb, LeRobot and sorrel: rows of named fields, which many processes can use.

The rows lie in one shared lane. Clearing the ring raises its base: rows with tickets below the base no longer count.
Positions count from the base, so a cleared ring fills from position 0 again.

    tickets    0 ... base ........ lo ......... hi       position of ticket t = (t - base) mod capacity
                cleared | overwritten | held   |
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import check_whole
from ..errors import LaneBusy, MarlcoreError
from ..memory import invalidate_after_fork
from ..spec import Field
from .ring_lane import BASE, NAP_S, ROUNDS, Ints, Path, RingLane, RingWriter, Rows


class Held(NamedTuple):
    """The tickets that a ring held at one moment, [lo, hi); positions count from `base`."""

    lo: int
    hi: int
    base: int
    capacity: int

    @property
    def stored(self) -> int:
        """The number of positions written since the ring was cleared."""
        return min(self.hi - self.base, self.capacity)

    @property
    def head(self) -> int:
        """The next position to be written."""
        return (self.hi - self.base) % self.capacity

    def tickets(self, positions: Ints) -> Ints:
        """Returns the newest ticket at each of `positions`, which are from 0 to stored - 1."""
        if self.hi - self.base < self.capacity:
            return positions + self.base
        tickets: Ints = (positions - self.head) % self.capacity
        tickets += self.hi - self.capacity
        return tickets

    def positions(self, tickets: Ints) -> Ints:
        positions: Ints = (tickets - self.base) % self.capacity
        return positions

    def draw(self, count: int, integers: Callable[[int, int, int], Ints]) -> Ints:
        """Draws tickets uniformly, int64 [count]; returns none while every row is being overwritten.

        `integers(low, high, n)` draws n integers in [low, high).
        """
        stored = self.stored
        if self.hi - self.lo == stored:
            return self.tickets(integers(0, stored, count))
        return integers(self.lo, self.hi, count) if self.lo < self.hi else np.zeros(0, np.int64)


class Ring:
    """Rows of named fields in shared memory, for every process that has the object; one thread at a time may use it.

    Where /dev/shm has no room, the ring takes an unlinked file in the temporary directory, to which other processes
    attach while the process that made it lives.

    Args:
        fields: the fields of a row by name.
        capacity: the number of rows.
        shared: True: any number of processes append, under a lock that costs two system calls per append. False: the
            first process that appends is the only one, until it releases or closes the ring, or ends. That process's
            `columns` has views of the fields, [capacity + margin, *shape], to read in place.
        margin: rows before the oldest position that stay readable.
        path: an ordinary file for the rows, which stays; None: shared memory.
    """

    _OWN: Mapping[str, Any] = {"_lane": None, "_writer": None, "columns": {}}  # each process makes these at first use
    _lane: RingLane | None
    _writer: RingWriter | None
    columns: Rows

    def __init__(
        self, fields: Mapping[str, Field], capacity: int, *, shared: bool, margin: int = 0, path: Path | None = None
    ) -> None:
        self.fields = dict(fields)
        self.capacity = capacity
        self._shared = shared
        self._names = tuple(self.fields)
        lane = RingLane.of(self.fields, capacity + margin, path)
        self._handle = lane.handle
        self.__setstate__({**self._OWN, "_lane": lane})

    def forked(self) -> None:
        """Makes the next use in a forked child attach anew."""
        vars(self).update(self._OWN)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **self._OWN}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        invalidate_after_fork(self)

    @property
    def lane(self) -> RingLane:
        if self._lane is None:
            self._lane = RingLane.attach(self._handle)
        return self._lane

    @property
    def writer(self) -> RingWriter:
        """This process's writer. Raises LaneBusy if another process holds the right to append."""
        if self._writer is None:
            lane = self.lane
            try:
                self._writer = lane.writer(self._shared)
            except LaneBusy:
                raise LaneBusy("add: another process adds to this buffer; it must first release or close it") from None
            if not self._shared:
                self.columns = {name: lane.column(place)[0] for name, place in lane.places.items()}
        return self._writer

    def window(self) -> Held:
        lane = self.lane
        if self.columns:
            writer, base = self.writer, lane.base[0]
            return Held(max(writer.first, writer.next - self.capacity, base), writer.next, base, self.capacity)
        base = lane.load_base()
        while True:
            lo, hi = lane.edges()
            previous, base = base, lane.load_base()
            if base == previous:  # otherwise hi may include rows added after another process's clear
                return Held(max(lo, base, hi - self.capacity), hi, base, self.capacity)

    def append(self, rows: Mapping[str, Any], count: int) -> int:
        """Adds `count` rows, all or none, each field [count, *shape]; returns the first row's ticket."""
        writer = self.writer
        try:
            if count > 1:
                return writer.append_batch(rows, count)
            for name, view in writer.row.items():
                view[...] = rows[name]
            return writer.append()
        except BaseException:  # an interrupt may come after the rows
            writer.next = self.lane.edges()[1]
            raise

    def gather(self, tickets: Ints, *names: str) -> tuple[Rows, NDArray[np.bool_] | None]:
        """Copies the named fields (default: all) of committed rows; also returns which copies are whole (None: all)."""
        return self.lane.gather(tickets, names or self._names)

    def at(self, positions: Ints, *names: str) -> Rows:
        """Copies the named fields (default: all) at positions: [*positions.shape, *shape], zeros at empty positions."""
        window = self.window()
        present = positions < window.stored
        rows, ok = self.gather(window.tickets(positions[present]), *names)
        if ok is not None:
            present[present] = ok
        filled: Rows = {}
        for name, copied in rows.items():
            filled[name] = np.zeros((*positions.shape, *copied.shape[1:]), copied.dtype)
            filled[name][present] = copied if ok is None else copied[ok]
        return filled

    def snapshot(self, *names: str) -> Rows:
        """Returns read-only copies of the named fields (default: all) by position; zeros at empty positions."""
        rows = self.at(np.arange(self.capacity), *names)
        for array in rows.values():
            array.flags.writeable = False
        return rows

    def whole(self, groups: int, draw: Callable[[int], Ints], *names: str) -> tuple[Rows, Ints]:
        """Draws and copies groups of rows; draws a group again if a writer overwrote one of its rows meanwhile.

        Args:
            groups: the number of groups.
            draw: draw(n) returns the tickets of n groups, [n, rows of a group] or, for single rows, [n]; it returns an
                empty array while there is nothing to draw.
            names: the fields to copy; all by default.

        Returns: each field, [*tickets.shape, *shape], and the tickets.
        """
        rows: Rows = {}
        missing: Any = slice(None)
        for _ in range(ROUNDS):
            tickets = draw(groups)
            if len(tickets) < groups:
                time.sleep(NAP_S)
                continue
            copied, ok = self.gather(tickets.ravel(), *names)
            if tickets.ndim > 1:
                copied = {name: part.reshape(*tickets.shape, *part.shape[1:]) for name, part in copied.items()}
            if not rows:
                rows, drawn = copied, tickets
            else:
                drawn[missing] = tickets
                for name, part in copied.items():
                    rows[name][missing] = part
            if ok is None:
                return rows, drawn
            missing = np.arange(len(drawn))[missing][~ok.reshape(groups, -1).all(axis=1)]
            groups = len(missing)
        raise MarlcoreError(f"{self.lane!r}: writers overwrote every draw; use a larger capacity")

    def position(self, ticket: int) -> int:
        return (ticket - self.lane.load_base()) % self.capacity

    def clear(self) -> None:
        """Deletes every row committed so far. A row that another process adds meanwhile may be deleted or kept."""
        with self.lane.lock_words():
            self.lane.words.store(BASE, self.lane.edges()[1])

    def release(self) -> None:
        """Lets another process append; repeated calls are harmless."""
        if self._writer is not None:
            self._writer.close()
            vars(self).update({**self._OWN, "_lane": self._lane})

    def close(self) -> None:
        """Releases the memory, which disappears when the ring's creator closes it."""
        self.release()
        if self._lane is not None:
            self._lane.close()


def whole_number(label: str, value: Any, least: int) -> int:
    """Returns an integer or a whole float as an int. Raises ValueError for other values and for one below `least`."""
    if type(value) is int and value >= least:
        return value
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        value = int(value) if int(value) == value else value
    check_whole(label, value, least)
    return int(value)
