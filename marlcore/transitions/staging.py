"""Stages many transitions for one call of the C core: each field's array is checked, then copied or lent."""

import errno
from contextvars import Context
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_finite
from ..memory import NativeVector, NativeWriter
from ..spec import Field, rows_of
from .layout import LaneView, Place, rewards_of
from .setters import FieldSetters, Setter, put_all

Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]

_FLAG = Field((), "bool")
_FLOATS = frozenset(map(np.dtype, ("float16", "float32", "float64")))


@dataclass(frozen=True)
class Slots:
    """The places of `count` rows among the staged rows."""

    count: int
    where: slice | NDArray[np.int64]


def rows_setter(label: str, field: Field, view: NDArray[Any], slots: Slots) -> Setter:
    """Returns a setter of a field's rows, [count, *shape], at these slots of `view`."""
    rows, dtype, shape = slots.count, field.numpy, (slots.count, *field.shape)
    where: Any = slots.where
    if isinstance(where, slice):
        view, where = view[where], ...
    direct = {dtype}  # dtypes that an assignment converts as `rows_of` does
    wider: frozenset[np.dtype[Any]] = frozenset()  # dtypes that it converts so unless a value exceeds the field's range
    if dtype in _FLOATS:
        direct = {narrow for narrow in _FLOATS if narrow.itemsize <= dtype.itemsize}
        wider = _FLOATS - direct
    raising = Context()  # entering np.errstate in each call takes longer than the assignment
    raising.run(np.seterr, over="raise")

    def put(value: Any) -> None:
        fits = value.__class__ is np.ndarray and value.shape == shape
        if fits and value.dtype in direct:
            view[where] = value
            return
        if fits and value.dtype in wider:
            try:
                raising.run(view.__setitem__, where, value)
                return
            except FloatingPointError:
                pass  # `rows_of` says which value
        view[where] = rows_of(label, field, value, rows)

    if where is not ... or view.ndim > 1 or dtype.kind not in "bi" or not view.flags.c_contiguous:
        return put  # also for uint8, as which a memoryview takes bytes
    memory: Any = view.data

    def put_numbers(value: Any) -> None:
        try:  # checks the shape and the dtype in less time than NumPy
            memory[:] = value
        except (TypeError, ValueError, BufferError):
            put(value)

    return put_numbers


def _reward_setter(field: Field, view: NDArray[np.float32], rows: Slots) -> Setter:
    put = rows_setter("reward", field, view, rows)
    if not field.shape:
        return put  # the C core refuses those that are not finite

    def put_finite(value: Any) -> None:
        values = rows_of("reward", field, value, rows.count)
        check_finite("reward", values)
        put(values)

    return put_finite


class _Staging:
    """Rows on their way into lanes: small fields are staged in records, large ones are lent to the C core.

    `rows` and `finals` are the slots of transitions and of boundary rows in `records`. The first two lines of `ends`,
    bool [3, m], hold the flags terminated and truncated of the transitions, at the slots `ended`; `never` is False
    for every row.
    """

    _vector: NativeVector | None = None  # its next call takes the lent rows

    def __init__(self, view: LaneView, records: Bytes, rows: Slots, finals: Slots, ends: Flags, ended: Slots) -> None:
        def put_of(place: Place, label: str, final: bool) -> Setter:
            slots = finals if final else rows
            if place.column:
                return self._lender(place, label, final, slots.count)
            return rows_setter(label, place.field, place.views(records), slots)

        self.rows = rows.count
        self.lent: dict[tuple[int, bool], Any] = {}  # for one call; keys: the column, and whether boundary rows
        self._ends, self.never = ends, np.zeros(rows.count, np.bool_)
        self.some_ended = False  # as staged
        self.put_reward = _reward_setter(view.spec.reward, rewards_of(view.spec, records), rows)
        self._put_terminated = rows_setter("terminated", _FLAG, ends[0], ended)
        self._put_truncated = rows_setter("truncated", _FLAG, ends[1], ended)
        fields = FieldSetters(view.spec, view.layout, put_of)
        self._put_obs, self._put_final, self._put_action = fields.obs, fields.final_obs, fields.action
        self.extras = fields.extras

    def put(self, obs: Any, action: Any, extras: dict[str, Any]) -> None:
        """Checks and stages these fields, each with a leading axis over rows; see also `put_reward` and `put_ends`."""
        self._put_obs(obs)
        self._put_action(action)
        if extras or self.extras:
            put_all("extras", self.extras, extras)

    def put_ends(self, terminated: Any, truncated: Any, final_obs: Any) -> None:
        some_end = terminated is not None or truncated is not None
        if self.some_ended or some_end:
            self.some_ended = True  # stays set if a check below fails
            self._put_terminated(self.never if terminated is None else terminated)
            self._put_truncated(self.never if truncated is None else truncated)
            self.some_ended = some_end
        if final_obs is not None:
            self._put_final(final_obs)

    def _lender(self, place: Place, label: str, final: bool, rows: int) -> Setter:
        # No reference to this object: its memory would stay until the collection of cycles.
        lent, column, vector = self.lent, place.column, self._vector

        def put(value: Any) -> None:
            array = np.ascontiguousarray(rows_of(label, place.field, value, rows))
            lent[column, final] = array if vector is None else vector.set_frame(column, array, final)

        return put


class BatchStaging(_Staging):
    """Consecutive transitions of one lane, for `Writer.add_batch`, and boundary rows, which `merge` puts among them.

    Raises ValueError if the rows and `spare` further ones exceed the lane's capacity.
    """

    def __init__(self, native: NativeWriter, view: LaneView, rows: int, spare: int, boundaries: int = 0) -> None:
        self.boundaries = boundaries
        total, capacity = rows + boundaries, view.geometry.capacity
        self._large = [(column, False) for column in range(1, len(view.layout.columns))]
        if capacity < total + spare:
            of = f"{capacity - spare} of the lane's {capacity}" if spare else f"the lane's {capacity}"
            raise ValueError(f"reward: expected at most {of} rows, final_obs included, got {total}")
        self._staged, ends = np.zeros((total, view.layout.record_bytes), np.uint8), np.zeros((3, total), np.bool_)
        ends[2, rows:] = True
        transitions, finals = Slots(rows, slice(rows)), Slots(boundaries, slice(rows, None))
        super().__init__(view, self._staged, transitions, finals, ends, transitions)
        self._rewards = rewards_of(view.spec, self._staged)
        self._final_needed = not view.spec.next_obs
        self._numbers, self._order = np.arange(total), np.arange(total)  # the latter: of the merged rows
        self._records, self._flags = (self._staged.copy(), ends.copy()) if boundaries else (self._staged, ends)
        self._append = native.rows_adder(self._records, self._flags.view(np.uint8), self._final_needed)

    def merge(self, truncated: Flags) -> None:
        """Makes `append` put a boundary row after each row that `truncated` marks; it marks `boundaries` rows."""
        finals = truncated.nonzero()[0] + self._numbers[1 : 1 + self.boundaries]
        np.subtract(self._numbers, finals.searchsorted(self._numbers), self._order)
        self._order[finals] = self._numbers[self.rows :]

    def check(self) -> int:
        """Returns 0, or the negative code that `append` would return."""
        if not np.isfinite(self._rewards).all():
            return -errno.EDOM
        final_missing = self._final_needed and not self.boundaries and self._ends[1].any()
        return -errno.EPROTO if final_missing else 0

    def append(self) -> int:
        """Appends the rows; returns the first row's ticket, or a negative code."""
        if not self.boundaries:
            return self._append([self.lent[key] for key in self._large])
        self._staged.take(self._order, 0, self._records, "clip")  # fancy indexing takes six times as long
        self._ends.take(self._order, 1, self._flags, "clip")
        return self._append([*map(self._merged, self._large)])

    def _merged(self, key: tuple[int, bool]) -> NDArray[Any]:
        """Merges a large field's rows with its boundary rows; boundary rows without the field get zeros."""
        rows: NDArray[Any] = self.lent[key]
        frames, are_final = np.empty((len(self._order), *rows.shape[1:]), rows.dtype), self._order >= self.rows
        frames[~are_final], frames[are_final] = rows, self.lent.get((key[0], True), 0)
        return frames


class VectorStaging(_Staging):
    """Rows of different lanes, for `VectorWriter.add`; record 2 i holds row i, record 2 i + 1 its boundary row.

    `which` holds the index of each row's writer; `left_out` marks rows for which a queue has no room.
    """

    def __init__(self, native: NativeVector, view: LaneView, records: Bytes) -> None:
        self.records, rows = records, len(records) // 2
        self.which, self.tickets = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        ends = np.zeros((3, rows), np.bool_)
        self.left_out = ends[2]
        transitions, finals = Slots(rows, slice(0, None, 2)), Slots(rows, slice(1, None, 2))
        self._vector = native
        super().__init__(view, records, transitions, finals, ends, Slots(rows, slice(None)))
        self.append, self.check = native.rows_adder(records, self.which, ends.view(np.uint8), self.tickets)

    def lend(self, column: int, rows: NDArray[Any]) -> None:
        """Lends the rows of a large field to the next append."""
        assert self._vector is not None
        self.lent[column, False] = self._vector.set_frame(column, np.ascontiguousarray(rows))

    def ended(self) -> Flags:
        ended: Flags = self._ends[0] | self._ends[1]
        return ended
