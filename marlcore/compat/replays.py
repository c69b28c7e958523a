"""The replays behind other libraries' buffers: columns that are read in place, and saves as bytes."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ..kernels import columns
from ..kernels.plan import COLUMN
from ..memory import LINE, Segment
from ..replay import ReplayBuffer
from ..spec import Field, TransitionSpec
from ..transitions import HEAD_BYTES, Place, address_of

R = TypeVar("R", bound=ReplayBuffer)
K = TypeVar("K")  # what names a field
Rows = dict[str, NDArray[Any]]

_HEAD = np.dtype([("ordinal", "u4"), ("place", "u4"), ("policy_version", "u4"), ("reward", "f4")])  # csrc/api.h
_FLAGS_SHIFT = 24
_UNUSED = Field((), "uint8")
assert _HEAD.itemsize == HEAD_BYTES


class ViewedReplay(ReplayBuffer):
    """A replay with read-only views of its columns, [lanes, rows, *shape]; ticket t is at row t mod rows.

    Only its one writer should read a view, since the writer knows which rows change meanwhile.
    """

    def _understand(self, segment: Segment) -> None:
        super()._understand(segment)
        self._edges = np.zeros((2, self.lanes), np.int64)
        self._read_edges = self._mapped.native.windows(self._edges[0], self._edges[1])

    def windows(self) -> NDArray[np.int64]:
        """Returns a copy of the bounds [lo, hi) of each lane's tickets: int64 [2, lanes]."""
        self.check_open()
        self._read_edges()
        return self._edges.copy()

    def columns(self, role: str) -> dict[str, NDArray[Any]]:
        return {place.name: self.column(place) for place in self._mapped.layout.of_role(role)}

    def column(self, place: Place) -> NDArray[Any]:
        return self._view(place.column, place.offset, place.field.numpy, place.field.shape)

    def rewards(self) -> NDArray[np.float32]:
        """Returns a view of the rewards, float32 [lanes, rows]."""
        return self._view(0, 0, _HEAD)["reward"]

    def flags(self) -> NDArray[np.uint32]:
        """Returns a copy of the rows' flags TERMINATED, TRUNCATED, BOUNDARY: uint32 [lanes, rows]."""
        return self._view(0, 0, _HEAD)["place"] >> np.uint32(_FLAGS_SHIFT)

    def _view(self, column: int, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...] = ()) -> NDArray[Any]:
        self.check_open()
        geometry = self._mapped.geometry
        rows, stride = geometry.rows(column), geometry.stride(column)
        strides = (rows * stride, stride, *np.empty(shape, dtype).strides)
        offset += geometry.column_offset(column)
        view = np.ndarray((self.lanes, rows, *shape), dtype, self._segment.body, offset, strides)
        view.flags.writeable = False
        return view


MOST_BYTES = 2**31 - 1  # of a NumPy dtype


class RowCopy(Generic[K]):
    """Copies fields of up to `room` rows of a replay into new memory.

    `numbers`, int64 [n], are tickets in a replay of one lane, otherwise lane * r + ticket mod r, where a lane has r
    rows. The copies are named as in `places`, each [n, *shape].
    """

    def __init__(self, replay: ViewedReplay, places: Mapping[K, Place], room: int) -> None:
        self.room = room
        self._capacity = replay.capacity
        self._columns, self._fields, self._nbytes = np.zeros(len(places), COLUMN), dict[K, Field](), 0
        for i, (name, place) in enumerate(places.items()):
            field, stride = place.field, replay._mapped.geometry.stride(place.column)
            into = self._columns[["base", "stride", "size", "out"]]  # a view
            into[i] = address_of(replay.column(place)), stride, field.nbytes, self._nbytes
            self._fields[name] = field
            self._nbytes += -(-room * field.nbytes // LINE) * LINE
        self._names = {name: str(i) for i, name in enumerate(self._fields)}
        self._made = room, self._structure(room)

    def _structure(self, count: int) -> np.dtype[Any] | None:
        """Returns a dtype of all copies of `count` rows; indexing one such array costs less than making several.

        None for more bytes than a dtype may have.
        """
        if self._nbytes > MOST_BYTES:
            return None
        formats = [(field.numpy, (count, *field.shape)) for field in self._fields.values()]
        offsets = self._columns["out"].tolist()
        names = [*self._names.values()]
        return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": self._nbytes})

    def rows(self, numbers: NDArray[np.int64]) -> dict[K, NDArray[Any]]:
        count, out = len(numbers), np.empty(self._nbytes, np.uint8)
        columns.gather(self._columns, self._capacity, numbers, out)
        made = self._made  # one snapshot, since threads may copy numbers of rows that differ
        if made[0] != count:
            made = self._made = count, self._structure(count)
        if made[1] is None:
            fields = zip(self._fields.items(), self._columns["out"].tolist(), strict=True)
            return {name: np.ndarray((count, *field.shape), field.numpy, out, at) for (name, field), at in fields}
        copies = np.ndarray((), made[1], out)
        return {name: copies[label] for name, label in self._names.items()}

    def suits(self, count: int) -> bool:
        """Returns whether `count` rows fit and do not waste most of the memory."""
        return count <= self.room <= 4 * count + 8


def room_for(count: int) -> int:
    """Returns the room that a copy for `count` rows should have."""
    return 1 << max(count - 1, 0).bit_length()


def spec_of(fields: Mapping[str, Field]) -> TransitionSpec:
    """Returns the spec of rows with these fields; no row continues the row before it."""
    return TransitionSpec(_UNUSED, _UNUSED, dict(fields), next_obs=True)


def to_bytes(replay: ReplayBuffer) -> bytes:
    """Returns the content of a `ReplayBuffer.save` file. Raises SharedMemoryFull if the temporary directory is full."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        replay.save(path)
        return path.read_bytes()


def from_bytes(saved: bytes | memoryview, name: str, cls: type[R]) -> R:
    """Creates a replay of class `cls` from the bytes of `to_bytes`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "replay"
        path.touch(mode=0o600)  # `attach` refuses files that others can read
        path.write_bytes(saved)
        return cast(R, cls.load(path, name=name))
