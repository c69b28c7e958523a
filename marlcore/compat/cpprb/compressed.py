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
        rows = {name: field for name, field in fields.items() if name not in self._next_of}
        rows |= {name: Field(fields[name].shape[:-1], fields[name].dtype) for name in stacked}
        super().__init__(rows, capacity, shared=False, margin=max(self._depths.values(), default=1) - 1, path=path)
        self._names = tuple(self._all)
        # The last frames of each stacked field in the lane, [depth - 1, *shape]; values that follow the newest row
        self._frames = {name: rows[name].zeros(depth - 1) for name, depth in self._depths.items()}
        self._following: Rows = {}
        self._kept = {name: _Kept(capacity) for name in (*self._depths, *self._next_of)}

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
                newest = self.writer.next - 1
                values = self._value(self._next_of[name], np.minimum(tickets + 1, newest))
                if name in self._following:
                    values[tickets == newest] = self._following[name]
                rows[name] = self._kept[name].put_into(values, tickets)
        return rows, None

    def clear(self) -> None:
        super().clear()
        for kept in self._kept.values():
            kept.clear()

    def _value(self, name: str, tickets: Ints) -> NDArray[Any]:
        depth = self._depths.get(name)
        if depth is None:
            return super().gather(tickets, name)[0][name]
        span = np.maximum(tickets[:, np.newaxis] + np.arange(1 - depth, 1), 0)
        frames = super().gather(span.ravel(), name)[0][name].reshape(*span.shape, *self.fields[name].shape)
        return self._kept[name].put_into(np.moveaxis(frames, 1, -1), tickets)


class _Kept(dict[int, NDArray[Any]]):
    """Values of a field that the ring does not imply, by the place of their row, its ticket mod capacity."""

    def __init__(self, capacity: int) -> None:
        self._has = np.zeros(capacity, np.bool_)  # a value, by place

    def clear(self) -> None:
        super().clear()
        self._has[:] = False

    def put(self, tickets: Ints, values: NDArray[Any]) -> None:
        places = tickets % len(self._has)
        self.update(zip(places.tolist(), map(np.copy, values), strict=True))
        self._has[places] = True

    def drop(self, tickets: Ints) -> None:
        places = tickets % len(self._has)
        for place in places[self._has[places]].tolist():
            del self[place]
        self._has[places] = False

    def put_into(self, values: NDArray[Any], tickets: Ints) -> NDArray[Any]:
        """`values`, [n, *shape], with those that are kept in their places."""
        places = tickets % len(self._has)
        for row in np.flatnonzero(self._has[places]).tolist():
            values[row] = self[int(places[row])]
        return values


def _equal_rows(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = (a == b).reshape(len(a), -1).all(axis=1)
    return equal
