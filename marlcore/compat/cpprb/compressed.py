"""The ring of cpprb's buffers of one process, which holds stacks and next values once."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from ...errors import StaleHandle
from ...spec import Field
from ..ring import Ints, Ring, Rows
from ..ring_lane import RingLane


class CompressedRing(Ring):
    """Rows of one process. A row of a stacked field holds the newest frame alone, and no row holds its next values.

    The other frames are those of the rows before, and the next value of a field is its value in the row after. Each
    `append` checks this, and keeps the values of which it is not true (at an episode's bounds) by the row's ticket.

    Args:
        fields: those of `append` and `gather` by name.
        capacity: rows.
        stacked: fields whose last axis is a stack of frames, the newest last.
        next_of: fields x whose values in the row after are the values of a field "next_x".
        path: an ordinary file for the rows; an earlier ring's file there is replaced.
    """

    def __init__(
        self,
        fields: Mapping[str, Field],
        capacity: int,
        *,
        stacked: Sequence[str] = (),
        next_of: Sequence[str] = (),
        path: str | os.PathLike[str] | None = None,
    ) -> None:
        self._all = dict(fields)
        self._depths = {name: fields[name].shape[-1] for name in stacked}
        self._next_of = {f"next_{name}": name for name in next_of}
        if path is not None and os.path.exists(path):
            with RingLane.attach(path) as earlier:
                earlier.unlink()
        rows = {name: self._row_field(name) for name in fields if name not in self._next_of}
        super().__init__(rows, capacity, shared=False, margin=max(self._depths.values(), default=1) - 1, path=path)
        self._names = tuple(self._all)
        # The last frames of each stacked field in the lane, [depth - 1, *shape]; values that follow the newest row
        self._frames = {name: rows[name].zeros(depth - 1) for name, depth in self._depths.items()}
        self._following: Rows = {}
        kept = [*self._depths, *self._next_of]
        self._kept = {name: _Kept(fields[name].zeros(0), capacity) for name in kept}

    def forked(self) -> None:
        """In a forked child: the ring is the parent's alone."""
        vars(self).update(self._OWN)

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("ReplayBuffer: expected no pickling of a buffer of one process; use MPReplayBuffer")

    @property
    def lane(self) -> RingLane:
        if self._lane is None:
            raise StaleHandle("ReplayBuffer: expected the process that made it, got a forked child; use MPReplayBuffer")
        return self._lane

    def append(self, rows: Mapping[str, Any], count: int) -> int:
        if not self._kept:
            return super().append(rows, count)
        values = {name: np.asarray(rows[name]).astype(field.numpy, copy=False) for name, field in self._all.items()}
        stored = {name: values[name][..., -1] if name in self._depths else values[name] for name in self.fields}
        first = super().append(stored, count)
        added = np.arange(first, first + count)
        for kept in self._kept.values():
            kept.drop(added)
        for name, depth in self._depths.items():
            frames = np.concatenate([self._frames[name], stored[name]])
            self._frames[name] = frames[count:].copy()
            before = sliding_window_view(frames, depth - 1, axis=0)[:count]
            whole = _equal_rows(before, values[name][..., :-1]) & (added >= depth - 1)
            self._kept[name].put(added[~whole], values[name][~whole])
        for label, name in self._next_of.items():
            following = np.concatenate([self._following.get(label, values[name][:1]), values[label]])
            self._following[label] = following[count:].copy()
            apart = ~_equal_rows(following[:count], values[name])
            apart[0] &= count < self.capacity  # otherwise the row before is overwritten
            self._kept[label].put(added[apart] - 1, following[:count][apart])
        return first

    def gather(self, tickets: Ints, *names: str) -> tuple[Rows, NDArray[np.bool_] | None]:
        if not self._kept:
            return super().gather(tickets, *names)
        wanted = names or self._names
        plain = [name for name in wanted if name not in self._depths and name not in self._next_of]
        rows: Rows = super().gather(tickets, *plain)[0] if plain else {}
        for name in wanted:
            if name in self._depths:
                rows[name] = self._value(name, tickets)
            elif name in self._next_of:
                rows[name] = self._next_value(name, tickets)
        return rows, None

    def clear(self) -> None:
        super().clear()
        for kept in self._kept.values():
            kept.clear()

    def _row_field(self, name: str) -> Field:
        field = self._all[name]
        return Field(field.shape[:-1], field.dtype) if name in self._depths else field

    def _value(self, name: str, tickets: Ints) -> NDArray[Any]:
        depth = self._depths.get(name)
        if depth is None:
            return super().gather(tickets, name)[0][name]
        span = np.maximum(tickets[:, np.newaxis] + np.arange(1 - depth, 1), 0)
        frames = super().gather(span.ravel(), name)[0][name].reshape(*span.shape, *self.fields[name].shape)
        return self._kept[name].put_into(np.moveaxis(frames, 1, -1), tickets)

    def _next_value(self, label: str, tickets: Ints) -> NDArray[Any]:
        newest = self.writer.next - 1
        values = self._value(self._next_of[label], np.minimum(tickets + 1, newest))
        if label in self._following:
            values[tickets == newest] = self._following[label]
        return self._kept[label].put_into(values, tickets)


class _Kept:
    """Values of a field that the ring does not imply, by the row's ticket; `values` [n, *shape] grow."""

    def __init__(self, values: NDArray[Any], capacity: int) -> None:
        self._values = values
        self._places = np.full(capacity, -1)  # of the row at ticket mod capacity, in the values
        self.clear()

    def __len__(self) -> int:
        return len(self._values) - len(self._free)

    def clear(self) -> None:
        self._places[:] = -1
        self._free = np.arange(len(self._values))

    def put(self, tickets: Ints, values: NDArray[Any]) -> None:
        count, room = len(tickets), len(self._values)
        if count > len(self._free):
            more = max(count, min(room, len(self._places) - room))
            self._values = np.concatenate([self._values, np.zeros((more, *values.shape[1:]), values.dtype)])
            self._free = np.concatenate([self._free, np.arange(room, room + more)])
        places, self._free = self._free[:count], self._free[count:]
        self._values[places] = values
        self._places[tickets % len(self._places)] = places

    def drop(self, tickets: Ints) -> None:
        if len(self):
            rows = tickets % len(self._places)
            places = self._places[rows]
            self._free = np.concatenate([self._free, places[places >= 0]])
            self._places[rows] = -1

    def put_into(self, values: NDArray[Any], tickets: Ints) -> NDArray[Any]:
        """`values`, [n, *shape], with those that are kept in their places."""
        if len(self):
            places = self._places[tickets % len(self._places)]
            kept = np.flatnonzero(places >= 0)
            values[kept] = self._values[places[kept]]
        return values


def _equal_rows(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = (a == b).reshape(len(a), -1).all(axis=1)
    return equal
