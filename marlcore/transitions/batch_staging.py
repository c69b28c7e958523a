"""Staging of consecutive transitions of one lane, each truncated one followed by its boundary row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import rows_of
from ..memory import NativeWriter
from ..spec import TransitionSpec
from .layout import Place, RecordLayout
from .row_staging import RowStaging, Slots
from .staging import Put

__all__ = ["BatchStaging"]


class BatchStaging:
    """T transitions for `Writer.add_batch`.

    Args:
        native, spec, layout: of the writer.
        rows: transitions.
        spare: rows of the lane that a batch leaves free.
        truncated: bool [rows], the transitions that boundary rows follow; None: none.

    Attributes:
        rows: transitions.
        boundaries: boundary rows.

    Raises: ValueError: the lane has no room for so many rows.
    """

    def __init__(
        self,
        native: NativeWriter,
        spec: TransitionSpec,
        layout: RecordLayout,
        rows: int,
        spare: int,
        truncated: NDArray[np.bool_] | None = None,
    ) -> None:
        self.rows = rows
        self.boundaries = 0 if truncated is None else int(np.count_nonzero(truncated))
        self._all = rows + self.boundaries
        capacity = native.raw.lane.capacity
        if capacity < self._all + spare:
            of = f"{capacity - spare} of the lane's {capacity}" if spare else f"the lane's {capacity}"
            raise ValueError(f"reward: expected at most {of} rows, final_obs included, got {self._all}")
        records = np.zeros((self._all, layout.record_bytes), np.uint8)
        ends = np.zeros((3, self._all), np.bool_)
        slots, finals = Slots(rows, slice(None)), Slots(0, slice(0))
        if truncated is not None:
            at = np.arange(rows) + np.cumsum(truncated) - truncated
            slots, finals = Slots(rows, at), Slots(self.boundaries, at[truncated] + 1)
            ends[2, finals.at] = True
        self._frames: list[Any] = [None] * (len(layout.columns) - 1)
        staging = RowStaging(spec, layout, records, slots, finals, ends, slots, self._column_put)
        self.put = staging.put
        self._append = native.rows_adder(records, ends.view(np.uint8), not spec.next_obs)

    def append(self) -> int:
        """The first row's ticket, or a negative code."""
        return self._append(self._frames)

    def release_frames(self) -> None:
        """Releases the caller's arrays."""
        if self._frames:
            self._frames[:] = [None] * len(self._frames)

    def _column_put(self, place: Place, label: str, slots: Slots) -> Put:
        """Lends the caller's array; with boundary rows between the transitions, one of all rows."""
        frames, column, every_row, lend = self._frames, place.column - 1, self._all, not self.boundaries

        def put(value: Any) -> None:
            array = rows_of(label, place.field, value, slots.count)
            if lend:
                frames[column] = np.ascontiguousarray(array)
                return
            if frames[column] is None:
                frames[column] = np.zeros((every_row, *place.field.shape), place.field.dtype)
            frames[column][slots.at] = array

        return put
