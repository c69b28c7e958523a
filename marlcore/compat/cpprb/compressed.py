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
        self._kept: dict[int, Rows] = {}

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
        if not self._depths and not self._next_of:
            return super().append(rows, count)
        values = {name: np.asarray(rows[name]).astype(field.numpy, copy=False) for name, field in self._all.items()}
        stored = {name: values[name][..., -1] if name in self._depths else values[name] for name in self.fields}
        first = super().append(stored, count)
        for name, depth in self._depths.items():
            frames = np.concatenate([self._frames[name], stored[name]])
            self._frames[name] = frames[count:].copy()
            before = sliding_window_view(frames, depth - 1, axis=0)[:count]
            whole = _equal_rows(before, values[name][..., :-1]) & (np.arange(first, first + count) >= depth - 1)
            self._keep(name, first, values[name], ~whole)
        for label, name in self._next_of.items():
            following = np.concatenate([self._following.get(label, values[name][:1]), values[label]])
            self._following[label] = following[count:].copy()
            self._keep(label, first - 1, following, ~_equal_rows(following[:count], values[name]))
        if self._kept:
            for ticket in range(first - self.capacity, first - self.capacity + count):  # the rows overwritten
                self._kept.pop(ticket, None)
        return first

    def gather(self, tickets: Ints, *names: str) -> tuple[Rows, NDArray[np.bool_] | None]:
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
        self._kept.clear()

    def _row_field(self, name: str) -> Field:
        field = self._all[name]
        return Field(field.shape[:-1], field.dtype) if name in self._depths else field

    def _keep(self, name: str, first: int, values: NDArray[Any], apart: NDArray[np.bool_]) -> None:
        """Keeps the values [n, *shape] of tickets from `first` on that the ring does not imply."""
        for i in np.flatnonzero(apart).tolist():
            self._kept.setdefault(first + i, {})[name] = values[i].copy()

    def _value(self, name: str, tickets: Ints) -> NDArray[Any]:
        """The field's values of rows, [n, *shape]."""
        depth = self._depths.get(name)
        if depth is None:
            return super().gather(tickets, name)[0][name]
        span = np.maximum(tickets[:, np.newaxis] + np.arange(1 - depth, 1), 0)
        frames = super().gather(span.ravel(), name)[0][name].reshape(*span.shape, *self.fields[name].shape)
        return self._corrected(name, tickets, np.moveaxis(frames, 1, -1))

    def _next_value(self, label: str, tickets: Ints) -> NDArray[Any]:
        newest = self.writer.next - 1
        values = self._value(self._next_of[label], np.minimum(tickets + 1, newest))
        if label in self._following:
            values[tickets == newest] = self._following[label]
        return self._corrected(label, tickets, values)

    def _corrected(self, name: str, tickets: Ints, values: NDArray[Any]) -> NDArray[Any]:
        """`values` with those that are kept apart in their places."""
        if self._kept:
            for i, ticket in enumerate(tickets.tolist()):
                kept = self._kept.get(ticket)
                if kept and name in kept:
                    values[i] = kept[name]
        return values


def _equal_rows(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether rows [n, ...] are equal; [n]."""
    equal: NDArray[np.bool_] = (a == b).reshape(len(a), -1).all(axis=1)
    return equal
