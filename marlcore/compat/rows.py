"""The writing end of a ring: a row is staged in arrays whose addresses are taken once, then appended by one call.

Of several rows, only small fields are staged. Large ones go from the caller's array to the ring: a second copy halves
what four writers add in a second.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import TimedOut
from ..memory import WAIT_SLICE_S, LaneClaim, NativeLanes, NativeWriter, add_lock
from ..transitions import Place, RecordLayout

__all__ = ["RowWriter", "Views", "frames_of", "view_of"]

Views = dict[str, NDArray[Any]]


def frames_of(layout: RecordLayout, count: int) -> list[NDArray[Any]]:
    """Staging for `count` rows of the large fields, each of which has its own column."""
    large = [place.field for place in layout.places if place.column]
    return [np.zeros((count, *field.shape), field.numpy) for field in large]


def view_of(place: Place, records: NDArray[np.uint8], frames: list[NDArray[Any]]) -> NDArray[Any]:
    """The staging of a field, [count, *shape]: in the records, uint8 [count, record bytes], or in the frames."""
    return frames[place.column - 1] if place.column else place.views(records)


class RowWriter:
    """Appends rows of named fields to the one lane of a replay, as its extras.

    Args:
        lanes, layout, claim: of that replay, and the right to write to its lane.
        names: the caller's name of each field, and the extra's name.
        shared: other processes write to the lane too: each append takes a lock.
        patience_s: longest wait of an append for the lock, in seconds.

    Attributes:
        row: the staging of the next row: a view [1, *shape] of each field, whose values persist.
    """

    def __init__(
        self,
        lanes: NativeLanes,
        layout: RecordLayout,
        claim: LaneClaim,
        names: Mapping[str, str],
        shared: bool,
        patience_s: float,
    ) -> None:
        self._claim = claim
        self._layout = layout
        self._patience_s = patience_s
        records = np.zeros((2, layout.record_bytes), np.uint8)
        lock = (claim.fd, add_lock(lanes.count, 0), min(patience_s, WAIT_SLICE_S)) if shared else None
        self._native = NativeWriter(lanes, 0, records, lock)
        self._add_row = partial(self._native.add_row, self._native.raw, 0)
        extras = {place.name: place for place in layout.of_role("extra")}
        self._places = {name: extras[stored_as] for name, stored_as in names.items()}
        frames = frames_of(layout, 1)
        self._keep = [self._native.set_frame(k, frame) for k, frame in enumerate(frames, 1)]
        self.row = self._views(records[:1], frames)
        self._batch: _Batch | None = None

    def append(self) -> int:
        """Appends `row`; returns its ticket.

        Raises: TimeoutError: another writer was stopped inside an append. ClosedError: this one was closed.
        """
        ticket: int = self._add_row()
        return ticket if ticket >= 0 else self._again(ticket, self._add_row)

    def append_batch(self, rows: Mapping[str, Any], count: int) -> int:
        """Appends rows, all or none, each field [count, *shape]; returns the first ticket. Raises: see `append`.

        NumPy converts the dtypes. Contiguous arrays of large fields with the field's own dtype are not staged.
        """
        batch = self._batch
        if batch is None or batch.rows != count:
            batch = self._batch = self._new_batch(count)
        frames = batch.frames.copy()
        for name, view in batch.views.items():
            column, values = self._places[name].column, rows[name]
            if column and _is_same(values, view):
                frames[column - 1] = values
            else:
                view[...] = values
        ticket: int = batch.add(frames)
        return ticket if ticket >= 0 else self._again(ticket, partial(batch.add, frames))

    def _new_batch(self, count: int) -> _Batch:
        records, frames = np.zeros((count, self._layout.record_bytes), np.uint8), frames_of(self._layout, count)
        add = self._native.rows_adder(records, np.zeros((3, count), np.uint8), False)
        return _Batch(count, self._views(records, frames), frames, add)

    def close(self) -> None:
        """Releases the lane; repeated calls are harmless."""
        self._native.close()
        self._claim.release()

    def _views(self, records: NDArray[np.uint8], frames: list[NDArray[Any]]) -> Views:
        return {name: view_of(place, records, frames) for name, place in self._places.items()}

    def _again(self, code: int, append: Callable[[], int]) -> int:
        """Repeats an append while other writers hold the lane, and handles signals in between; returns the ticket."""
        began = time.monotonic()
        while code in (-errno.EAGAIN, -errno.EINTR):
            if time.monotonic() >= began + self._patience_s:
                raise TimedOut(f"add: another process stayed inside its own add for {self._patience_s} seconds")
            code = append()
        if code < 0:
            raise self._native.fail(code)
        return code


class _Batch(NamedTuple):
    """The staging of some number of rows: views of each field, the arrays of the large ones, and what appends them."""

    rows: int
    views: Views
    frames: list[NDArray[Any]]
    add: Callable[[list[NDArray[Any]]], int]


def _is_same(values: Any, view: NDArray[Any]) -> bool:
    """Whether `values` are laid out in memory as the staging is."""
    return (
        isinstance(values, np.ndarray)
        and values.dtype == view.dtype
        and values.shape == view.shape
        and values.flags.c_contiguous
    )
