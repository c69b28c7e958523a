"""A ring for one process, which stores each frame of a stack and each next value once: for cpprb and LeRobot."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import StaleHandle
from ..spec import Field
from .ring import Ints, Ring, Rows
from .ring_lane import Path, RingLane

_INSTEAD = "use MPReplayBuffer of cpprb, or a buffer of LeRobot without optimize_memory"


class CompressedRing(Ring):
    """A ring of one process, whose rows hold only the newest frame of a stacked field, and no next values.

    `gather` takes the other frames from the rows before, and next values from the row after. Where these would differ
    from the arguments of `append`, as at an episode's bounds, `append` stores the true values separately.

    Args:
        fields: the fields that `append` takes and `gather` returns, by name.
        capacity: rows.
        stacked: names of fields whose last axis is a stack of frames, the newest last.
        next_of: names x of fields for which "next_x" is the value of x in the row after.
        path: an ordinary file for the rows, which replaces the file of an earlier ring; None: shared memory.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        stacked: Sequence[str],
        next_of: Sequence[str],
        path: Path | None,
    ) -> None:
        self._all = dict(fields)
        self._depths = {name: fields[name].shape[-1] for name in stacked}
        self._next_of = {f"next_{name}": name for name in next_of}
        if path is not None and os.path.exists(path):
            with RingLane.attach(path) as earlier:
                earlier.unlink()
        rows = {name: field for name, field in fields.items() if name not in self._next_of}
        rows |= {name: Field(fields[name].shape[:-1], fields[name].dtype) for name in stacked}
        super().__init__(rows, capacity, shared=False, margin=max(self._depths.values(), default=1) - 1, path=path)
        self._overrides = {name: _Overrides(capacity) for name in (*self._depths, *self._next_of)}

    def forked(self) -> None:
        """Drops a forked child's ring, which only the parent may use."""
        vars(self).update(self._OWN)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"pickle: expected no buffer of one process; {_INSTEAD}")

    @property
    def lane(self) -> RingLane:
        if self._lane is None:
            raise StaleHandle(f"buffer: expected the process that made it, got a forked child; {_INSTEAD}")
        return self._lane

    def append(self, rows: Mapping[str, Any], count: int) -> int:
        if not self._overrides:
            return super().append(rows, count)
        values = {name: np.asarray(rows[name]).astype(field.numpy, copy=False) for name, field in self._all.items()}
        stored = {name: values[name][..., -1] if name in self._depths else values[name] for name in self.fields}
        first = self.writer.next
        try:
            super().append(stored, count)
            self._override(values, first, count)
        except BaseException:
            if self.writer.next > first:  # an interrupt may come after the rows
                self._override(values, first, count)
            raise
        return first

    def _override(self, values: Rows, first: int, count: int) -> None:
        """Stores the newest rows' values where neighbouring rows differ, and drops those of the rows they replaced."""
        added = np.arange(first, first + count)
        for overrides in self._overrides.values():
            overrides.drop(added)
        for name in self._depths:
            apart = ~_equal_rows(self._value(name, added), values[name])
            self._overrides[name].put(added[apart], values[name][apart])
        for label, name in self._next_of.items():  # the newest row's next value is kept until the next row is there
            overrides = self._overrides[label]
            last = overrides.get((first - 1) % self.capacity)
            if last is not None and (last == values[name][0]).all():
                overrides.drop(added[:1] - 1)
            apart = np.append(~_equal_rows(values[label][:-1], values[name][1:]), True)
            overrides.put(added[apart], values[label][apart])

    def gather(self, tickets: Ints, *names: str) -> tuple[Rows, NDArray[np.bool_] | None]:
        if not self._overrides:
            return super().gather(tickets, *names)
        newest, rows = self.writer.next - 1, dict[str, NDArray[Any]]()
        for name in names or self._all:
            if name in self._next_of:
                values = self._value(self._next_of[name], np.minimum(tickets + 1, newest))
                rows[name] = self._overrides[name].put_into(values, tickets)
            else:
                rows[name] = self._value(name, tickets)
        return rows, None

    def clear(self) -> None:
        super().clear()
        for overrides in self._overrides.values():
            overrides.clear()

    def _value(self, name: str, tickets: Ints) -> NDArray[Any]:
        column = self.columns[name]
        if name not in self._depths:
            return column[tickets % len(column)]
        span = np.maximum(tickets[:, np.newaxis] + np.arange(1 - self._depths[name], 1), 0)
        return self._overrides[name].put_into(np.moveaxis(column[span % len(column)], 1, -1), tickets)


class _Overrides(dict[int, NDArray[Any]]):
    """A field's true values where neighbouring rows differ; the keys are the rows' places, ticket mod capacity."""

    def __init__(self, capacity: int) -> None:
        self._has = np.zeros(capacity, np.bool_)  # by place: whether there is a value

    def clear(self) -> None:
        self._has[:] = False  # first, here and in `drop`: an interrupt may come in between
        super().clear()

    def put(self, tickets: Ints, values: NDArray[Any]) -> None:
        places = tickets % len(self._has)
        self.update(zip(places.tolist(), map(np.copy, values), strict=True))
        self._has[places] = True

    def drop(self, tickets: Ints) -> None:
        places = tickets % len(self._has)
        dropped = places[self._has[places]].tolist()
        self._has[places] = False
        for place in dropped:
            del self[place]

    def put_into(self, values: NDArray[Any], tickets: Ints) -> NDArray[Any]:
        """Writes the overrides of the rows at `tickets` into `values`, [n, *shape]; returns `values`."""
        places = tickets % len(self._has)
        for row in np.flatnonzero(self._has[places]).tolist():
            values[row] = self[int(places[row])]
        return values


def _equal_rows(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = (a == b).all(axis=tuple(range(1, a.ndim)))
    return equal
