"""What the one process that adds to a buffer has: the next row, staged, and the newest rows in place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...spec import as_field
from ...transitions import MEMORYVIEW_ITEMS, setter
from ..ring import Ring

_NUMBERS = "?bBhHiIlLqQefd"  # dtypes that NumPy casts to float32 without surprise


class Adder:
    """Adds rows to a ring until it is cleared: see `base`.

    Args:
        ring: has at least the fields obs, action, reward, done and count.
        count: the newest row's.

    Attributes:
        base: that of the ring.
        count: the newest row's; 0 without rows.

    Raises: LaneBusy: another process holds the right to append.
    """

    def __init__(self, ring: Ring, count: int) -> None:
        self._writer = writer = ring.writer
        self.base, self.count = ring.window().base, count
        self._capacity = ring.capacity
        row = writer.row
        self._puts = {name: setter(name, field, row[name]) for name, field in ring.fields.items()}
        self._items = {
            name: row[name][0].data
            for name, field in ring.fields.items()
            if len(field.shape) == 1 and row[name].dtype.char in MEMORYVIEW_ITEMS
        }
        self._field = ring.fields["obs"]
        self._shapes = (self._field.shape, (1, *self._field.shape))
        self._obs = row["obs"][0, ...]
        self._action, self._reward, self._done, self._count = (
            row[name].data for name in ("action", "reward", "done", "count")
        )
        self._observations = ring.columns["obs"]
        self._columns = tuple(ring.columns[name].data for name in ("action", "reward", "done"))

    def put(self, name: str, value: Any) -> None:
        """Stages a field of the next row. Raises: ValueError, TypeError: see `add`."""
        items = self._items.get(name)
        if items is not None and value.__class__ is tuple and len(value) == len(items):
            try:
                for i, item in enumerate(value):  # a location: a tenth of what an array made of it takes
                    items[i] = item
                return
            except (TypeError, ValueError):
                pass
        self._puts[name](value)

    def add(self, obs: Any, action: Any, reward: Any, done: Any) -> None:
        """Appends a row; leading axes of length one of the observation are dropped.

        Raises: ValueError, TypeError: a field has another shape or kind; nothing was added.
        """
        if obs.__class__ is np.ndarray and obs.shape in self._shapes and obs.dtype.char in _NUMBERS:
            self._obs[...] = obs
        else:
            array = np.asarray(obs)
            while array.ndim > len(self._field.shape) and len(array) == 1:
                array = array[0]
            self._obs[...] = as_field("obs", self._field, array)
        try:
            self._action[0] = action
            self._reward[0] = reward
            self._done[0] = done
        except (TypeError, ValueError):  # values of another kind, which NumPy may convert
            for name, value in (("action", action), ("reward", reward), ("done", done)):
                self._puts[name](value)
        count = self._count[0] = self.count + 1
        self._writer.append()
        self.count = count

    def transition(self, offset: int) -> tuple[int, float, bool] | None:
        """The (action, reward, done) of the row `offset` rows before the newest; None if the ring lacks it."""
        ticket = self._writer.next - 1 - offset
        if offset >= min(self.count, self._capacity) or ticket < max(self._writer.first, self.base):
            return None
        action, reward, done = self._columns
        at = ticket % self._capacity
        return action[at], reward[at], done[at] != 0

    def observations(self, count: int) -> NDArray[np.float32] | None:
        """A copy of the last `count` observations, oldest first; None if the ring lacks some of them."""
        first = self._writer.next - count
        if first < max(self._writer.first, self.base):
            return None
        begin = first % self._capacity
        end = begin + count
        if end <= self._capacity:
            return self._observations[begin:end].copy()
        return np.concatenate([self._observations[begin:], self._observations[: end - self._capacity]])
