"""The writing end of a replay lane: checks a transition, stages it, and appends it with one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._native import BOUNDARY, TERMINATED, TRUNCATED, NativeLanes, NativeWriter
from .errors import StaleHandle
from .lane import LaneClaim
from .record import Place, RecordLayout
from .shm import invalidate_after_fork
from .spec import Field, TransitionSpec

__all__ = ["Writer", "as_field"]

Put = Callable[[Any], None]


class Writer:
    """Appends transitions to one lane of a replay; made by `ReplayBuffer.writer`.

    Every value is checked before anything is written, so that a bad one leaves the replay as it was. Values of
    another dtype are taken when NumPy calls the conversion safe or of the same kind (float64 to float32, not float
    to int), or when they are integers in the field's range. Rewards must be finite; other floats may be anything.

    Attributes:
        lane: the lane's number.
    """

    def __init__(self, lanes: NativeLanes, lane: int, layout: RecordLayout, spec: TransitionSpec, claim: LaneClaim):
        self.lane = lane
        self._claim = claim
        self._layout = layout
        self._spec = spec
        self._records = np.zeros((2, layout.record_bytes), np.uint8)
        self._native = NativeWriter(lanes, lane, self._records)
        self._keep: dict[tuple[int, bool], Any] = {}  # frames lent to the C core for the next row
        self._add_row = self._native.add_row
        self._raw = self._native.raw
        self._put_obs = self._put_many("obs", 0)
        self._put_final = self._put_many("obs", 1, "final_obs")
        self._put_action = self._put(layout.of_role("action")[0], 0)
        self._reward = memoryview(self._records[0, 12:16]).cast("f")
        stored = layout.of_role("extra")
        self._extras = {place.name: self._put(place, 0) for place in stored}
        if spec.next_obs:
            self._extras["next_obs"] = self._put_many("next_obs", 0)
        invalidate_after_fork(self)

    def add(
        self,
        obs: Any,
        action: Any,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        final_obs: Any = None,
        **extras: Any,
    ) -> int:
        """Appends one transition; the observation that follows it is the next call's `obs`.

        Args:
            obs: the observation acted on; a dict when the spec's obs is one.
            action: the action taken.
            reward: what it earned, finite.
            terminated: the episode ended in a terminal state.
            truncated: the episode was cut off; needs `final_obs`, from which its return is bootstrapped.
            final_obs: the observation after the last action; only with terminated or truncated.
            extras: every extra field of the spec, and next_obs when the spec stores it.

        Returns: the transition's ticket, counted from 0 in this lane; a final_obs takes the ticket after it.

        Raises:
            ValueError, TypeError: a field is missing, unknown, or of another shape, dtype or range.
            ClosedError: the writer was closed. SegmentCorrupt: the lane's counters were damaged.
        """
        flags = 0
        if terminated is not False or truncated is not False or final_obs is not None:
            flags = self._ending(terminated, truncated, final_obs)
        self._put_obs(obs)
        self._put_action(action)
        try:
            self._reward[0] = reward
        except (TypeError, ValueError):
            raise TypeError(f"reward: expected a number, got {reward!r}") from None
        if extras or self._extras:
            self._put_extras(extras)
        ticket: int = self._add_row(self._raw, flags)
        if ticket < 0:
            raise self._failure(ticket)
        return ticket

    def add_batch(
        self,
        obs: Any,
        action: ArrayLike,
        reward: ArrayLike,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        final_obs: Any = None,
        **extras: Any,
    ) -> int:
        """Appends T consecutive transitions of this lane at once: all of them or none.

        Args:
            obs, action, reward, terminated, truncated, extras: as for `add`, each with a leading axis T.
            final_obs: [number of truncated rows, *shape], in their order; needed when there is one.

        Returns: the first transition's ticket.

        Raises: as `add`; ValueError also when the rows are more than the lane's capacity.
        """
        reward_array = as_field("reward", Field(np.shape(reward), "float32"), reward)
        if reward_array.ndim != 1 or not len(reward_array):
            raise ValueError(f"reward: expected shape (T,) with T of at least 1, got {reward_array.shape}")
        rows = len(reward_array)
        ended = [_flag_rows("terminated", terminated, rows), _flag_rows("truncated", truncated, rows)]
        truncations = np.flatnonzero(ended[1])
        columns = self._batch_columns(rows, {"obs": obs, "": action, **extras})
        flags = (ended[0] * TERMINATED + ended[1] * TRUNCATED).astype(np.uint8)
        if len(truncations) and not self._spec.next_obs:
            if final_obs is None:
                raise ValueError("final_obs: expected one observation for each truncated row, got None")
            finals = self._named_fields("final_obs", final_obs, len(truncations))
            columns, reward_array, flags = _insert_finals(columns, finals, reward_array, flags, truncations)
        elif final_obs is not None:
            raise ValueError("final_obs: expected None without truncated rows")
        return self._append(columns, reward_array, flags)

    @property
    def policy_version(self) -> int:
        """The version of the weights that act, stored with every row from now on; at first 0."""
        return self._native.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._native.policy_version = version

    def close(self) -> None:
        """Gives the lane back; harmless when repeated."""
        self._native.close()
        self._claim.release()

    def forked(self) -> None:
        """In a forked child: the lane is the parent's."""
        self._native.close()
        self._failure = lambda code: StaleHandle("the writer was made before a fork; its lane is the parent's")  # type: ignore[method-assign]

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a Writer belongs to one process: pass the replay and call its `writer` there")

    def _failure(self, code: int) -> Exception:
        return self._native.fail(code)

    def _ending(self, terminated: Any, truncated: Any, final_obs: Any) -> int:
        """The flags of a row that may end its episode; stages final_obs."""
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, (bool, np.bool_)):
                raise TypeError(f"{name}: expected a bool, got {value!r}")
        if final_obs is None:
            if truncated and not self._spec.next_obs:
                raise ValueError("final_obs: expected the observation after a truncated transition, got None")
            return (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        if self._spec.next_obs:
            raise ValueError("final_obs: expected None, since this spec stores next_obs")
        if not (terminated or truncated):
            raise ValueError("final_obs: expected None unless terminated or truncated")
        self._put_final(final_obs)
        return (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0) | BOUNDARY

    def _put_extras(self, extras: dict[str, Any]) -> None:
        if extras.keys() != self._extras.keys():
            raise _names_error("extras", self._extras.keys(), extras.keys())
        for name, put in self._extras.items():
            put(extras[name])

    def _put_many(self, role: str, record: int, label: str | None = None) -> Put:
        """A call that stages an observation: one array, or a dict of them."""
        label = label or role
        places = self._layout.of_role(role)
        if isinstance(self._spec.obs, Field):
            return self._put(places[0], record, label)
        puts = {place.name: self._put(place, record, f"{label}[{place.name!r}]") for place in places}

        def put(value: Any) -> None:
            if not isinstance(value, Mapping) or value.keys() != puts.keys():
                raise _names_error(label, puts.keys(), value)
            for name, put_one in puts.items():
                put_one(value[name])

        return put

    def _put(self, place: Place, record: int, label: str | None = None) -> Put:
        """A call that checks one value and stages it, as cheaply as its kind allows."""
        label = label or place.label
        if place.column:
            return self._frame_put(place, record, label)
        view = place.views(self._records)[record : record + 1]
        if not place.field.shape and view.dtype.kind in "iuf":
            return _scalar_put(label, place.field, view)
        return _array_put(label, place.field, view[0])

    def _frame_put(self, place: Place, record: int, label: str) -> Put:
        """Large fields are not staged: the C core copies them from the caller's array into the lane."""
        field, dtype, shape = place.field, np.dtype(place.field.dtype), place.field.shape
        set_frame, keep, key, final = self._native.set_frame, self._keep, (place.column, bool(record)), bool(record)

        def put(value: Any) -> None:
            if not (
                value.__class__ is np.ndarray
                and value.dtype == dtype
                and value.shape == shape
                and value.flags.c_contiguous
            ):
                value = np.ascontiguousarray(as_field(label, field, value))
            keep[key] = set_frame(place.column, value, final)

        return put

    def _batch_columns(self, rows: int, values: dict[str, Any]) -> dict[Place, NDArray[Any]]:
        """Every stored field but the reward, checked, with a leading axis of `rows`."""
        columns: dict[Place, NDArray[Any]] = {}
        given = dict(values)
        for place in self._layout.places:
            if place.role in ("obs", "next_obs"):
                continue
            if place.name not in given:
                raise _names_error("extras", self._extras.keys(), values.keys() - {"obs", ""})
            columns[place] = _rows_of(place.label, place.field, given.pop(place.name), rows)
        for role in ("obs", "next_obs") if self._spec.next_obs else ("obs",):
            if role not in given:
                raise _names_error("extras", self._extras.keys(), values.keys() - {"obs", ""})
            by_name = self._named_fields(role, given.pop(role), rows)
            for place in self._layout.of_role(role):
                columns[place] = by_name[place.name]
        if given:
            raise _names_error("extras", self._extras.keys(), values.keys() - {"obs", ""})
        return columns

    def _named_fields(self, label: str, value: Any, rows: int) -> dict[str, NDArray[Any]]:
        """An observation's arrays by field name, each with a leading axis of `rows`."""
        fields = self._spec.obs_fields
        if isinstance(self._spec.obs, Field):
            return {"": _rows_of(label, fields[""], value, rows)}
        if not isinstance(value, Mapping) or value.keys() != fields.keys():
            raise _names_error(label, fields.keys(), value)
        return {name: _rows_of(f"{label}[{name!r}]", field, value[name], rows) for name, field in fields.items()}

    def _append(self, columns: dict[Place, NDArray[Any]], reward: NDArray[Any], flags: NDArray[np.uint8]) -> int:
        records = np.zeros((len(flags), self._layout.record_bytes), np.uint8)
        records.view(np.float32)[:, 3] = reward
        frames: list[NDArray[Any]] = [records] * (len(self._layout.columns) - 1)
        for place, array in columns.items():
            if place.column:
                frames[place.column - 1] = np.ascontiguousarray(array)
            else:
                place.views(records)[...] = array
        try:
            return self._native.add_rows(records, frames, flags)
        except ValueError as error:
            if "rows" in str(error):
                raise ValueError(f"rows: expected at most the lane's capacity, got {len(flags)}") from None
            raise


def as_field(label: str, field: Field, value: Any) -> NDArray[Any]:
    """`value` as an array of the field's shape and dtype.

    Raises: ValueError, TypeError: naming the field, what was expected and what came.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{label}: expected {field.describe()}, got {error}") from None
    dtype = np.dtype(field.dtype)
    if array.shape != field.shape:
        raise ValueError(f"{label}: expected {field.describe()}, got shape {array.shape}")
    if array.dtype == dtype:
        return array
    if np.can_cast(array.dtype, dtype, "same_kind"):
        if array.dtype.kind in "iu" and dtype.kind in "iu":
            _check_range(label, field, array)
        return array.astype(dtype)
    if array.dtype.kind in "iu" and dtype.kind in "iu":
        _check_range(label, field, array)
        return array.astype(dtype)
    raise TypeError(f"{label}: expected {field.describe()}, got dtype {array.dtype}")


def _check_range(label: str, field: Field, array: NDArray[Any]) -> None:
    limits = np.iinfo(field.dtype)
    if array.size and (int(array.min()) < limits.min or int(array.max()) > limits.max):
        raise ValueError(f"{label}: expected values in {field.dtype}'s range, got {array.min()} to {array.max()}")


def _scalar_put(label: str, field: Field, view: NDArray[Any]) -> Put:
    """A memoryview checks the type and range of a Python or NumPy number by itself."""
    memory = memoryview(view)

    def put(value: Any) -> None:
        try:
            memory[0] = value
        except (TypeError, ValueError):
            memory[0] = as_field(label, field, value)[()]

    return put


def _array_put(label: str, field: Field, view: NDArray[Any]) -> Put:
    dtype, shape = np.dtype(field.dtype), field.shape

    def put(value: Any) -> None:
        if value.__class__ is np.ndarray and value.dtype == dtype and value.shape == shape:
            view[...] = value
        else:
            view[...] = as_field(label, field, value)

    return put


def _rows_of(label: str, field: Field, value: Any, rows: int) -> NDArray[Any]:
    return as_field(label, Field((rows, *field.shape), field.dtype), value)


def _flag_rows(label: str, value: ArrayLike | None, rows: int) -> NDArray[np.bool_]:
    if value is None:
        return np.zeros(rows, np.bool_)
    return as_field(label, Field((rows,), "bool"), value)


def _insert_finals(
    columns: dict[Place, NDArray[Any]],
    finals: dict[str, NDArray[Any]],
    reward: NDArray[Any],
    flags: NDArray[np.uint8],
    truncations: NDArray[np.intp],
) -> tuple[dict[Place, NDArray[Any]], NDArray[Any], NDArray[np.uint8]]:
    """Puts a boundary row behind each truncated one: its observation, and zeros for the rest."""
    at = truncations + 1
    wide = {
        place: np.insert(array, at, finals[place.name] if place.role == "obs" else 0, axis=0)
        for place, array in columns.items()
    }
    return wide, np.insert(reward, at, 0), np.insert(flags, at, BOUNDARY)


def _names_error(label: str, expected: Any, got: Any) -> ValueError:
    got_names = sorted(got) if hasattr(got, "keys") or isinstance(got, set) or hasattr(got, "__iter__") else got
    return ValueError(f"{label}: expected the fields {sorted(expected)}, got {got_names!r}")
