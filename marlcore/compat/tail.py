"""The ring of a sorrel buffer for the one process that appends to it; it need not check for other writers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import as_field
from ..transitions import MEMORYVIEW_ITEMS, setter
from .ring import Held, Ring

__all__ = ["Tail", "newest_count"]


_NUMBERS = "?bBhHiIlLqQefd"  # dtypes that NumPy casts to float32 without surprise


class Tail:
    """Appends rows to a ring and reads the newest ones in place: no other process overwrites them.

    Valid until the ring is cleared: see `is_current`.

    Args:
        ring: has at least the fields obs, action, reward, done and count.

    Attributes:
        count: the newest row's count; 0 without rows.

    Raises: LaneBusy: another process holds the right to append.
    """

    def __init__(self, ring: Ring) -> None:
        self._append = ring.writer.append
        row = ring.writer.row
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
        self._base_word = ring.base_word
        window = ring.window()
        self._base, self._first, self._next = window.base, window.lo, window.hi
        self._capacity = ring.capacity
        self._shift = self._base % self._capacity
        self._columns = {name: ring.rows.named(name) for name in ("obs", "action", "reward", "done")}
        self._observations = self._columns["obs"]
        self._taken = tuple(self._columns[name].data for name in ("action", "reward", "done"))
        self.count = newest_count(ring)

    def is_current(self) -> bool:
        """Whether the ring has not been cleared since."""
        return bool(self._base_word[0] == self._base)

    def window(self) -> Held:
        """The window of rows that the ring holds."""
        oldest = max(self._first, self._next - self._capacity)
        return Held(oldest, self._next, self._base, self._capacity)

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
            self._obs[...] = as_field("obs", self._field, _squeezed(obs, len(self._field.shape)))
        try:
            self._action[0] = action
            self._reward[0] = reward
            self._done[0] = done
        except (TypeError, ValueError):  # values of another kind, which NumPy may convert
            for name, value in (("action", action), ("reward", reward), ("done", done)):
                self._puts[name](value)
        count = self._count[0] = self.count + 1
        self._next = self._append() + 1
        self.count = count

    def transition(self, offset: int) -> tuple[int, float, bool] | None:
        """The (action, reward, done) of the row `offset` rows before the newest; None if the ring lacks it."""
        stored = min(self._next - self._base, self._capacity)
        ticket = self._next - 1 - offset
        if offset >= min(self.count, stored) or ticket < self._first:
            return None
        action, reward, done = self._taken
        at = ticket % self._capacity
        return action[at], reward[at], done[at] != 0

    def observations(self, count: int) -> NDArray[np.float32] | None:
        """A copy of the last `count` observations, oldest first; None if the ring lacks some of them."""
        first = self._next - count
        if first < self._first:
            return None
        begin = first % self._capacity
        end = begin + count
        if end <= self._capacity:
            return self._observations[begin:end].copy()
        return np.concatenate([self._observations[begin:], self._observations[: end - self._capacity]])

    def take(self, name: str, positions: Any) -> NDArray[Any]:
        """Copies of obs, action, reward or done at positions held whole, [*positions.shape, *shape]."""
        if self._shift:
            positions = (positions + self._shift) % self._capacity
        found: NDArray[Any] = self._columns[name][positions]
        return found


def newest_count(ring: Ring) -> int:
    """The count of a ring's newest row; 0 without rows."""
    window = ring.window()
    if window.hi == window.base:
        return 0
    newest, _ = ring.gather(np.array([window.hi - 1]), "count")
    return int(newest["count"][0])


def _squeezed(value: Any, axes: int) -> NDArray[Any]:
    obs: NDArray[Any] = np.asarray(value)
    while obs.ndim > axes and len(obs) == 1:
        obs = obs[0]
    return obs
