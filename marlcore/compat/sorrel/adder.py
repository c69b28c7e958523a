"""Adds rows to a buffer in the only process that writes; stages the next row, and reads the newest rows in place."""

from math import isinf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...spec import as_field
from ...transitions import setter
from ..ring import Ring

SCALARS = ("action", "reward", "done")
_NUMBERS = "?bBhHiIlLqQefd"  # dtypes that NumPy may cast to float32


class Adder:
    """Appends rows to a ring, and reads its newest rows. Raises LaneBusy if another process adds to it."""

    def __init__(self, ring: Ring) -> None:
        self._writer = ring.writer
        self._base, self._count = ring.lane.base, ring.lane.mark
        self._capacity = ring.capacity
        row = self._writer.row
        self._puts = {name: setter(name, field, row[name]) for name, field in ring.fields.items()}
        self._items = {
            name: row[name][0].data
            for name, field in ring.fields.items()
            if len(field.shape) == 1 and row[name].dtype.kind in "iu"
        }
        self._field, self._number = ring.fields["obs"], ring.fields["reward"]
        self._shapes = (self._field.shape, (1, *self._field.shape))
        self._obs = row["obs"][0, ...]
        self._action, self._reward, self._done = (row[name].data for name in SCALARS)
        self._observations = ring.columns["obs"]
        self._columns = tuple(ring.columns[name].data for name in SCALARS)

    def put(self, name: str, value: Any) -> None:
        """Stages a field of the next row. Raises as `Buffer.add` does."""
        items = self._items.get(name)
        if items is not None and value.__class__ is tuple and len(value) == len(items):
            try:
                for i, item in enumerate(value):  # a location, stored ten times as fast as through a new array
                    items[i] = item
                return
            except (TypeError, ValueError):
                pass
        self._puts[name](value)

    def add(self, obs: Any, action: Any, reward: Any, done: Any) -> None:
        """Appends a row: these values, and the fields that `put` staged; see `Buffer.add`."""
        if obs.__class__ is np.ndarray and obs.shape in self._shapes and obs.dtype.char in _NUMBERS:
            if obs.dtype.char != "d":
                self._obs[...] = obs
            else:  # as `as_field` does, without its copy
                try:
                    with np.errstate(over="raise"):
                        self._obs[...] = obs
                except FloatingPointError:
                    as_field("obs", self._field, obs.reshape(self._field.shape))  # names the number
        else:
            array = np.asarray(obs)
            while array.ndim > len(self._field.shape) and len(array) == 1:
                array = array[0]
            self._obs[...] = as_field("obs", self._field, array)
        try:
            self._action[0] = action
            self._reward[0] = reward
            self._done[0] = done
        except (TypeError, ValueError):  # NumPy may be able to convert the values
            for name, value in (("action", action), ("reward", reward), ("done", done)):
                self._puts[name](value)
        if isinf(self._reward[0]):
            as_field("reward", self._number, reward)  # refuses a finite number that float32 does not hold
        self._count[0] += 1  # first, since readers limit a count that is too high if the process is killed in between
        self._writer.append()

    def transition(self, offset: int) -> tuple[int, float, bool] | None:
        """See `Buffer.last_transition`."""
        ticket = self._writer.next - 1 - offset
        if offset >= min(self._count[0], self._capacity) or ticket < max(self._writer.first, self._base[0]):
            return None
        action, reward, done = self._columns
        position = ticket % self._capacity
        return action[position], reward[position], done[position] != 0

    def observations(self, count: int) -> NDArray[np.float32] | None:
        """Returns a copy of the last `count` observations, oldest first; None if the ring lacks some of them."""
        first = self._writer.next - count
        if first < self._writer.first or first < self._base[0]:
            return None
        begin = first % self._capacity
        end = begin + count
        if end <= self._capacity:
            return self._observations[begin:end].copy()
        return np.concatenate([self._observations[begin:], self._observations[: end - self._capacity]])
