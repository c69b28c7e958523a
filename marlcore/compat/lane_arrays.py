"""Arrays in lanes: one process appends rows to several lanes, and reads the arrays of all lanes in place."""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ..memory import Inside, one_thread
from ..spec import Field, rows_of
from ..transitions import VectorWriter
from .replays import RowCopy, ViewedReplay, room_for, spec_of

Array = NDArray[Any]
Key = tuple[str, ...]  # of an array in a tree
Leaves = Mapping[Key, Array]


class LaneArrays:
    """Arrays by key, each [lanes * size, *shape]; a lane's row with ticket t is at lane * size + t mod size.

    Args:
        example: rows, [k, *shape] by key, which give the arrays' shapes and dtypes.
        lanes, size: the lanes, and the rows of each.
        name: of the replay in /dev/shm.

    Attributes:
        fields: a row's arrays by key. names: their names in `replay`, by key. views: read-only views by key.
    """

    def __init__(self, example: Leaves, lanes: int, size: int, name: str) -> None:
        self.fields = {key: Field(array.shape[1:], array.dtype.name) for key, array in example.items()}
        self.names = {key: f"leaf_{i}" for i, key in enumerate(example)}  # a key's parts may be any text
        spec = spec_of({self.names[key]: field for key, field in self.fields.items()})
        self.replay = cast(ViewedReplay, ViewedReplay.create(spec, lanes * size, lanes, name=name))
        places = {place.name: place for place in self.replay._mapped.layout.of_role("extra")}
        self._places = {key: places[name] for key, name in self.names.items()}
        columns = {key: self.replay.column(place) for key, place in self._places.items()}
        self.views = {key: column.reshape(-1, *column.shape[2:]) for key, column in columns.items()}
        self._every = list(range(lanes))
        self._writer: VectorWriter | None = None
        self._copy: RowCopy[Key] | None = None
        self._inside: Inside = {}

    def fill(self, lane: int, leaves: Leaves, count: int, head: int) -> None:
        """Fills an empty lane with its first `count` rows; position `head` will be written next."""
        start = lane * self.replay.capacity // self.replay.lanes
        for rows in (count, head % count if count else 0):  # a lap, and what the next one has written
            if rows:
                with self.replay.writer(lane) as writer:
                    unused = np.zeros(rows, np.uint8)
                    named = {name: leaves[key][start : start + rows] for key, name in self.names.items()}
                    writer.add_batch(unused, unused, np.zeros(rows, np.float32), next_obs=unused, **named)

    @one_thread
    def append(self, leaves: Leaves, lanes: list[int]) -> None:
        """Adds a row, [k, *shape] by key, to each of k lanes; missing arrays are zero, and unknown ones left out.

        Raises: ValueError, TypeError: nothing was added.
        """
        if self._writer is None:
            self._writer = self.replay.vector_writer()
        writer = self._writer
        staging = writer._every_lane if lanes == self._every else writer._staging_of(lanes)
        try:  # the other fields stay zero
            for key, name in self.names.items():
                array = leaves.get(key)
                staging.extras[name](self.fields[key].zeros(len(lanes)) if array is None else array)
            writer._append(staging, False, lanes)
        except (ValueError, TypeError):
            for key, field in self.fields.items():  # raises the error with the caller's name
                if key in leaves:
                    rows_of(".".join(key), field, leaves[key], len(lanes))
            raise
        finally:
            staging.lent.clear()

    def has(self, numbers: Any) -> bool:
        """Whether these are numbers of rows, int64 [n]; negative numbers, read as unsigned, are too large."""
        alike = numbers.__class__ is np.ndarray and numbers.dtype == np.int64 and numbers.ndim == 1
        return alike and len(numbers) > 0 and bool(numbers.view(np.uint64).max() < self.replay.capacity)

    def at(self, numbers: Array) -> dict[Key, Array]:
        """Copies the rows with these numbers, int [n] from 0 to lanes * size - 1."""
        if self._copy is None or not self._copy.suits(len(numbers)):
            self._copy = RowCopy(self.replay, self._places, room_for(len(numbers)))
        return self._copy.rows(np.ascontiguousarray(numbers, np.int64))
