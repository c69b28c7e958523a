"""Staging of many transitions for one call of the C core: each field's array is checked, then copied or lent."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..memory import NativeVector, NativeWriter
from ..spec import Field, TransitionSpec, rows_of
from .layout import REWARD_OFFSET, Place, RecordLayout
from .setters import FieldSetters, Put, put_all

_REWARD = Field((), "float32")
_FLAG = Field((), "bool")
_FLOATS = frozenset(map(np.dtype, ("float16", "float32", "float64")))


@dataclass(frozen=True)
class _Slots:
    """The places of `count` rows among the staged ones."""

    count: int
    at: slice | NDArray[np.int64]


class _RowStaging:
    """Rows on their way into lanes: small fields are staged in records, large ones are lent to the C core.

    Args:
        spec, layout: of the replay.
        records: staging, uint8 [n, record bytes].
        rows, finals: the records of the transitions, and of the boundary rows.
        ends: bool [3, m]; its first two lines are the transitions' terminated and truncated.
        ended: the transitions' places in those lines.
        lend: makes the callable that checks and lends the rows of a large field, given its place, its name in errors,
            and `rows` or `finals`.
    """

    def __init__(
        self,
        spec: TransitionSpec,
        layout: RecordLayout,
        records: NDArray[np.uint8],
        rows: _Slots,
        finals: _Slots,
        ends: NDArray[np.bool_],
        ended: _Slots,
        lend: Callable[[Place, str, _Slots], Put],
    ) -> None:
        def put_of(place: Place, label: str, final: bool) -> Put:
            slots = finals if final else rows
            if place.column:
                return lend(place, label, slots)
            return _rows_put(label, place.field, place.views(records), slots)

        self.rows = rows.count
        self._ends = ends
        self._some_ended = False
        self._put_reward = _rows_put("reward", _REWARD, records.view(np.float32)[:, REWARD_OFFSET // 4], rows)
        self._put_ends = [_rows_put(name, _FLAG, ends[i], ended) for i, name in enumerate(("terminated", "truncated"))]
        self._fields = FieldSetters(spec, layout, put_of)

    def put(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        final_obs: Any,
        extras: dict[str, Any],
    ) -> None:
        """Checks and stages every field, each with a leading axis of its rows."""
        self._put_reward(reward)
        self._stage_ends(terminated, truncated)
        fields = self._fields
        if final_obs is not None:
            fields.final_obs(final_obs)
        fields.obs(obs)
        fields.action(action)
        if extras or fields.extras:
            put_all("extras", fields.extras, extras)

    def _stage_ends(self, terminated: Any, truncated: Any) -> None:
        """Stages the flags of rows that ended their episode; None: no row did."""
        some = terminated is not None or truncated is not None
        if not some and not self._some_ended:
            return
        self._some_ended = True  # stays set if a check below fails
        for i, value in enumerate((terminated, truncated)):
            if value is None:
                self._ends[i].fill(False)
            else:
                self._put_ends[i](value)
        self._some_ended = some


class BatchStaging(_RowStaging):
    """Consecutive transitions of one lane, each truncated one followed by its boundary row; for `Writer.add_batch`.

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
        self.boundaries = 0 if truncated is None else int(np.count_nonzero(truncated))
        self._all = rows + self.boundaries
        capacity = native.raw.lane.capacity
        if capacity < self._all + spare:
            of = f"{capacity - spare} of the lane's {capacity}" if spare else f"the lane's {capacity}"
            raise ValueError(f"reward: expected at most {of} rows, final_obs included, got {self._all}")
        records = np.zeros((self._all, layout.record_bytes), np.uint8)
        ends = np.zeros((3, self._all), np.bool_)
        slots, finals = _Slots(rows, slice(None)), _Slots(0, slice(0))
        if truncated is not None:
            at = np.arange(rows) + np.cumsum(truncated) - truncated
            slots, finals = _Slots(rows, at), _Slots(self.boundaries, at[truncated] + 1)
            ends[2, finals.at] = True
        self._frames: list[Any] = [None] * (len(layout.columns) - 1)
        super().__init__(spec, layout, records, slots, finals, ends, slots, self._lend)
        self._append = native.rows_adder(records, ends.view(np.uint8), not spec.next_obs)

    def append(self) -> int:
        """The first row's ticket, or a negative code."""
        return self._append(self._frames)

    def release_frames(self) -> None:
        """Releases the caller's arrays."""
        if self._frames:
            self._frames[:] = [None] * len(self._frames)

    def _lend(self, place: Place, label: str, slots: _Slots) -> Put:
        """Lends the caller's array; with boundary rows between the transitions, one of all rows."""
        frames, column, all_rows, as_it_is = self._frames, place.column - 1, self._all, not self.boundaries

        def put(value: Any) -> None:
            array = rows_of(label, place.field, value, slots.count)
            if as_it_is:
                frames[column] = np.ascontiguousarray(array)
                return
            if frames[column] is None:
                frames[column] = np.zeros((all_rows, *place.field.shape), place.field.dtype)
            frames[column][slots.at] = array

        return put


class VectorStaging(_RowStaging):
    """Rows of different lanes; record 2 i is row i's, record 2 i + 1 its boundary row's; for `VectorWriter.add`.

    Attributes:
        rows: their number, k.
        append, check: see AddVector.
        which: int64 [k], the index of each row's writer.
        left_out: bool [k], rows that a queue has no room for.
        tickets: int64 [k], filled by `append`.
    """

    def __init__(
        self, native: NativeVector, spec: TransitionSpec, layout: RecordLayout, records: NDArray[np.uint8]
    ) -> None:
        rows = len(records) // 2
        self.which, self.tickets = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._frames: list[Any] = []  # lent to the C core for one call
        ends = np.zeros((3, rows), np.bool_)
        self.left_out = ends[2]
        transitions, finals = _Slots(rows, slice(0, None, 2)), _Slots(rows, slice(1, None, 2))

        def lend(place: Place, label: str, slots: _Slots) -> Put:
            def put(value: Any) -> None:
                array = np.ascontiguousarray(rows_of(label, place.field, value, rows))
                self._frames.append(native.set_frame(place.column, array, slots is finals))

            return put

        super().__init__(spec, layout, records, transitions, finals, ends, _Slots(rows, slice(None)), lend)
        self.append = native.rows_adder(self.which, ends.view(np.uint8), self.tickets)
        self.check = self.append.check

    def ended(self) -> NDArray[np.bool_]:
        """The rows that ended their episode, bool [k]."""
        ended: NDArray[np.bool_] = self._ends[0] | self._ends[1]
        return ended

    def release_frames(self) -> None:
        """Releases the caller's arrays."""
        self._frames.clear()


def _rows_put(label: str, field: Field, view: NDArray[Any], slots: _Slots) -> Put:
    """A callable that checks a field's rows, [count, *shape], and writes them into `view` at the slots."""
    rows, dtype, shape = slots.count, field.numpy, (slots.count, *field.shape)
    at: Any = slots.at
    if isinstance(at, slice):
        view, at = view[at], ...
    direct = {dtype}  # of arrays that an assignment converts as `rows_of` does
    wider: frozenset[np.dtype[Any]] = frozenset()  # the same, unless a value is beyond the field's range
    if dtype in _FLOATS:
        direct = {narrow for narrow in _FLOATS if narrow.itemsize <= dtype.itemsize}
        wider = _FLOATS - direct
    raising = Context()  # entering np.errstate in each call takes longer than the assignment
    raising.run(np.seterr, over="raise")

    def put(value: Any) -> None:
        fits = value.__class__ is np.ndarray and value.shape == shape
        if fits and value.dtype in direct:
            view[at] = value
            return
        if fits and value.dtype in wider:
            try:
                raising.run(view.__setitem__, at, value)
                return
            except FloatingPointError:
                pass  # `rows_of` says which value
        view[at] = rows_of(label, field, value, rows)

    return put
