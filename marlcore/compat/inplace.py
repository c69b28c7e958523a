"""A replay read in place, by the one process that writes all its rows and so knows that none changes meanwhile."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import Segment, claim
from ..replay import ReplayBuffer
from ..transitions import HEAD_BYTES, Place
from .lanes import LanesWriter

__all__ = ["InPlace"]

_HEAD = np.dtype([("ordinal", "u4"), ("place", "u4"), ("policy_version", "u4"), ("reward", "f4")])  # csrc/api.h
_FLAGS_SHIFT = 24
assert _HEAD.itemsize == HEAD_BYTES


class InPlace(ReplayBuffer):
    """A replay with read-only views of its columns, [lanes, rows, *shape]; a ticket is at row ticket mod rows."""

    def _understand(self, segment: Segment) -> None:
        super()._understand(segment)
        self._edges = np.zeros((2, self.lanes), np.int64)
        self._read_edges = self._lanes.windows(self._edges[0], self._edges[1])

    def windows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Copies of the bounds [lo, hi) of each lane's tickets: int64 [lanes] each."""
        self.check_open()
        self._read_edges()
        return self._edges[0].copy(), self._edges[1].copy()

    def columns(self, role: str) -> dict[str, NDArray[Any]]:
        """The fields of a role, such as "obs" or "extra", by name."""
        return {place.name: self.column(place) for place in self._layout.of_role(role)}

    def column(self, place: Place) -> NDArray[Any]:
        """A view of one field, [lanes, rows, *shape]."""
        return self._view(place.column, place.offset, place.field.numpy, place.field.shape)

    def rewards(self) -> NDArray[np.float32]:
        """A view of the rewards, float32 [lanes, rows]."""
        return self._view(0, 0, _HEAD, ())["reward"]

    def flags(self) -> NDArray[np.uint32]:
        """A copy of the rows' flags TERMINATED, TRUNCATED, BOUNDARY; uint32 [lanes, rows]."""
        return self._view(0, 0, _HEAD, ())["place"] >> np.uint32(_FLAGS_SHIFT)

    def lanes_writer(self) -> LanesWriter:
        """The writing end of all lanes, for this process alone. Raises LaneBusy: a lane has a living writer."""
        with contextlib.ExitStack() as undo:
            claims = []
            for lane in range(self.lanes):
                claims.append(claim(self._segment, self._lanes, lane))
                undo.callback(claims[-1].release)
            writer = LanesWriter(self._lanes, self._layout, claims)
            undo.pop_all()
        self._writers.add(writer)
        return writer

    def _view(self, column: int, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        self.check_open()
        rows, stride = self._geometry.rows(column), self._geometry.stride(column)
        strides = (rows * stride, stride, *np.empty(shape, dtype).strides)
        offset += self._geometry.column_offset(column)
        view = np.ndarray((self.lanes, rows, *shape), dtype, self._segment.body, offset, strides)
        view.flags.writeable = False
        return view
