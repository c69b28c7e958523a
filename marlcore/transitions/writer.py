"""The writer of a replay lane: it checks a transition, stages it, and appends it with one call."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Mapping
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import as_field, came, names_error, rows_of
from ..errors import StaleHandle
from ..interfaces import Gate
from ..memory import (
    BOUNDARY,
    TERMINATED,
    TRUNCATED,
    WAIT_SLICE_S,
    LaneClaim,
    NativeLanes,
    NativeWriter,
    add_lock,
    check_interruption,
    invalidate_after_fork,
    one_thread,
    refuse_second,
)
from ..spec import Field, TransitionSpec
from .layout import REWARD_OFFSET, Place, RecordLayout
from .staging import Put, setter

__all__ = ["Writer"]

_REWARD = Field((), "float32")
_FLAG = Field((), "bool")
_ALL = slice(None)


class Writer:
    """Appends transitions to one lane; made by `ReplayBuffer.writer` or `TrajectoryQueue.writer`.

    Any thread may use it, but only one at a time: a second thread that adds meanwhile gets UsedByTwoThreads. Any thread
    may call `close`.

    Every value is checked before the first write, so that a bad value leaves the replay unchanged. Values of another
    dtype are accepted if NumPy calls the conversion safe or of the same kind (float64 to float32, not float to int), or
    if they are integers in the field's range. Rewards must be finite; other floats may have any value.

    Attributes:
        lane: the lane's number.
    """

    def __init__(
        self,
        lanes: NativeLanes,
        lane: int,
        layout: RecordLayout,
        spec: TransitionSpec,
        claim: LaneClaim,
        shared: bool = False,
        timeout: float | None = None,
        gate: Gate | None = None,
    ) -> None:
        self.lane = lane
        self._claim = claim
        self._timeout = timeout
        self._gate = gate
        self._forked = False
        self._inside: dict[int, None] = {}  # see guard.py
        self._layout = layout
        self._spec = spec
        self._records = np.zeros((2, layout.record_bytes), np.uint8)
        self._slice_s = WAIT_SLICE_S if timeout is None else min(timeout, WAIT_SLICE_S)
        lock = (claim.fd, add_lock(lanes.count, lane), self._slice_s) if shared else None
        self._native = NativeWriter(lanes, lane, self._records, lock)
        self._keep: dict[tuple[int, bool], Any] = {}  # frames lent to the C core for the next row
        self._add_row = self._native.add_row
        self._raw = self._native.raw
        self._put_obs = self._put_many("obs", 0)
        self._put_final = self._put_many("obs", 1, "final_obs")
        self._reward = self._records[0, REWARD_OFFSET : REWARD_OFFSET + 4].data.cast("f")
        self._obs_places = {role: layout.of_role(role) for role in ("obs", "next_obs")}
        self._action_place = layout.of_role("action")[0]
        self._put_action = self._put(self._action_place, 0)
        self._extra_places = layout.of_role("extra")
        self._extras = {place.name: self._put(place, 0) for place in self._extra_places}
        self._staging: _Staging | None = None
        self._spare_rows = 0 if gate is None else gate.spare_rows
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
            reward: its reward, finite.
            terminated: the episode ended in a terminal state.
            truncated: the episode was cut off; needs `final_obs`, from which its return is bootstrapped.
            final_obs: the observation after the last action; only with terminated or truncated.
            extras: every extra field of the spec, and next_obs when the spec stores it.

        Returns: the transition's ticket, counted from 0 in this lane; a final_obs takes the ticket after it. -1 if
            a queue that drops the newest has no room: nothing was written, and the next row begins an episode.

        Raises:
            ValueError, TypeError: a field is missing, unknown, or of another shape, dtype or range.
            ClosedError: the writer was closed. SegmentCorrupt: the lane's counters were damaged.
            TimeoutError: after the writer's timeout; nothing was written. UsedByTwoThreads: see above.
        """
        inside, me = self._inside, get_ident()
        if inside:
            refuse_second(self)
        inside[me] = None
        try:
            if len(inside) > 1:
                refuse_second(self)
            flags = 0
            if terminated is not False or truncated is not False or final_obs is not None:
                flags = self._ending(terminated, truncated, final_obs)
            self._put_obs(obs)
            self._put_action(action)
            try:
                self._reward[0] = reward
            except (TypeError, ValueError):
                raise TypeError(f"reward: expected a number, got {came(reward)}") from None
            if extras or self._extras:
                self._put_extras(extras)
            began = None
            if self._gate is not None:
                began = time.monotonic()
                if not self._gate.wait(1, flags // BOUNDARY, self._timeout, self.check_open):
                    return self._leave_out()
            ticket: int = self._add_row(self._raw, flags)
            if ticket < 0:
                ticket = self._again(ticket, partial(self._add_row, self._raw, flags), began)
            return ticket
        finally:
            del inside[me]

    @one_thread
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
        """Appends T consecutive transitions to this lane at once, all or none.

        Args:
            obs, action, reward, terminated, truncated, extras: as for `add`, each with a leading axis T.
            final_obs: [number of truncated rows, *shape], in their order; needed if there are any.

        Returns: the first transition's ticket, or -1 as `add`.

        Raises: as `add`; ValueError also if the rows, each final_obs included, exceed the lane's capacity, or
            capacity - 1 in a queue or in a replay with a limiter.
        """
        try:
            rows = len(reward)  # type: ignore[arg-type]
        except TypeError:
            rows = 0
        if not rows:
            raise ValueError(f"reward: expected an array of shape (T,) with T of at least 1, got {came(reward)}")
        staging = self._staging_of(rows) if final_obs is None else self._stage_finals(final_obs, truncated, rows)
        staging.put_reward(reward)
        staging.put_ends(terminated, truncated)
        if extras.keys() != self._extras.keys():
            raise names_error("extras", self._extras.keys(), extras.keys())
        self._stage_obs(staging, "obs", obs)
        staging.put[self._action_place.number](action)
        if extras:
            self._stage_extras(staging, extras)
        began = None
        try:
            if self._gate is not None:
                began = time.monotonic()
                if not self._gate.wait(rows, staging.boundaries, self._timeout, self.check_open):
                    return self._leave_out()
            ticket = staging.append()
            return ticket if ticket >= 0 else self._again(ticket, staging.append, began)
        finally:
            staging.release_frames()

    @property
    def policy_version(self) -> int:
        """The version of the acting weights, stored with every row from now on; initially 0."""
        return self._native.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._native.policy_version = version

    def new_episode(self) -> None:
        """Makes the next row begin an episode, however the last row ended; no sample spans the two."""
        self._native.new_episode()

    def check_open(self) -> None:
        """Raises ClosedError after `close`, StaleHandle in a forked child."""
        if self._native.closed:
            raise self._failure(-errno.ESHUTDOWN)

    def close(self) -> None:
        """Releases the lane. Repeated calls are harmless."""
        self._native.close()
        self._claim.release()

    def forked(self) -> None:
        """In a forked child: makes later use raise, since the lane is the parent's."""
        self._native.close()
        self._forked = True

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Writer of lane {self.lane}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Writer belongs to one process: pass the replay and call its `writer` there")

    def _leave_out(self) -> int:
        """Leaves out rows without room; a new episode begins, since later rows do not follow those in the lane."""
        self._native.new_episode()
        return -1

    def _again(self, code: int, append: Callable[[], int], began: float | None) -> int:
        """Repeats an append while other writers are busy in the shared lane, and handles signals; returns the ticket.

        Args:
            code: result of the first attempt.
            append: makes the next attempt.
            began: when the add began to wait for room; None if its first attempt was its first wait.

        Raises: the error that prevented the append.
        """
        began = time.monotonic() - self._slice_s if began is None else began
        while code in (-errno.EAGAIN, -errno.EINTR):
            if self._timeout is not None and time.monotonic() >= began + self._timeout:
                raise TimeoutError(
                    f"lane {self.lane}: another writer was inside an add when this one had waited "
                    f"{self._timeout} seconds"
                )
            check_interruption()
            code = append()
        if code < 0:
            raise self._failure(code)
        return code

    def _failure(self, code: int) -> Exception:
        if self._forked:
            return StaleHandle("the writer was made before a fork; its lane is the parent's")
        return self._native.fail(code)

    def _ending(self, terminated: Any, truncated: Any, final_obs: Any) -> int:
        """The flags of a row that may end its episode; stages final_obs."""
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, (bool, np.bool_)):
                raise TypeError(f"{name}: expected a bool, got {came(value)}")
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
            raise names_error("extras", self._extras.keys(), extras.keys())
        for name, put in self._extras.items():
            put(extras[name])

    def _put_many(self, role: str, record: int, label: str | None = None) -> Put:
        """A callable that stages an observation: one array, or a dict of them."""
        label = label or role
        places = self._layout.of_role(role)
        if isinstance(self._spec.obs, Field):
            return self._put(places[0], record, label)
        puts = {place.name: self._put(place, record, f"{label}[{place.name!r}]") for place in places}

        def put(value: Any) -> None:
            if not isinstance(value, Mapping) or value.keys() != puts.keys():
                raise names_error(label, puts.keys(), value)
            for name, put_one in puts.items():
                put_one(value[name])

        return put

    def _put(self, place: Place, record: int, label: str | None = None) -> Put:
        """A callable that checks one value and stages it, as cheaply as its kind allows."""
        label = label or place.label
        if place.column:
            return self._frame_put(place, record, label)
        view = place.views(self._records)[record : record + 1]
        return setter(label, place.field, view)

    def _frame_put(self, place: Place, record: int, label: str) -> Put:
        """`_put` of a large field: not staged, since the C core copies it from the caller's array into the lane."""
        field, dtype, shape = place.field, place.field.numpy, place.field.shape
        if place.role != "obs":  # the core copies every column of a boundary row too
            self._keep[place.column, True] = self._native.set_frame(place.column, np.zeros(shape, dtype), True)
        set_frame, keep, key, final = (
            self._native.set_frame,
            self._keep,
            (place.column, bool(record)),
            bool(record),
        )

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

    def _staging_of(self, rows: int) -> _Staging:
        """Staging for `rows` rows, kept for the next batch of the same length."""
        if self._staging is None or self._staging.rows != rows:
            self._staging = _Staging(self._native, self._layout, rows, not self._spec.next_obs, self._spare_rows)
        return self._staging

    def _stage_finals(self, final_obs: Any, truncated: Any, rows: int) -> _Staging:
        """Staging with a boundary row after each truncated one."""
        ended = np.zeros(rows, np.bool_) if truncated is None else rows_of("truncated", _FLAG, truncated, rows)
        if self._spec.next_obs or not ended.any():
            raise ValueError("final_obs: expected None unless rows are truncated and the spec stores no next_obs")
        staging = _Staging(self._native, self._layout, rows, True, self._spare_rows, ended)
        for place, label, value in self._obs_values("obs", "final_obs", final_obs):
            staging.put_final(place, rows_of(label, place.field, value, staging.boundaries))
        return staging

    def _stage_obs(self, staging: _Staging, role: str, value: Any) -> None:
        if isinstance(self._spec.obs, Field):
            staging.put[self._obs_places[role][0].number](value)
            return
        for place, _, one in self._obs_values(role, role, value):
            staging.put[place.number](one)

    def _stage_extras(self, staging: _Staging, extras: dict[str, Any]) -> None:
        if self._spec.next_obs:
            self._stage_obs(staging, "next_obs", extras["next_obs"])
        for place in self._extra_places:
            staging.put[place.number](extras[place.name])

    def _obs_values(self, role: str, label: str, value: Any) -> list[tuple[Place, str, Any]]:
        """(place, label, value) of each field of an observation."""
        places = self._obs_places[role]
        if isinstance(self._spec.obs, Field):
            return [(places[0], label, value)]
        if not isinstance(value, Mapping) or value.keys() != self._spec.obs.keys():
            raise names_error(label, self._spec.obs.keys(), value)
        return [(place, f"{label}[{place.name!r}]", value[place.name]) for place in places]


class _Staging:
    """Rows on their way into a lane; small fields are staged, large ones are lent to the C core.

    Attributes:
        rows: transitions.
        boundaries: boundary rows, one after each row that `ended` marks.
        put: by a place's number, a callable that checks and stages the field's rows.
    """

    def __init__(
        self,
        native: NativeWriter,
        layout: RecordLayout,
        rows: int,
        boundaries: bool,
        spare: int,
        ended: NDArray[np.bool_] | None = None,
    ) -> None:
        self.rows = rows
        self.boundaries = 0 if ended is None else int(np.count_nonzero(ended))
        self._all = rows + self.boundaries
        capacity = native.raw.lane.capacity
        if 0 < capacity < self._all + spare:
            of = f"{capacity - spare} of the lane's {capacity}" if spare else f"the lane's {capacity}"
            raise ValueError(f"reward: expected at most {of} rows, final_obs included, got {self._all}")
        records = np.zeros((self._all, layout.record_bytes), np.uint8)
        self._ends = np.zeros((3, self._all), np.bool_)
        self._some_ended = False
        self._at: Any = _ALL
        if ended is not None:
            self._at = np.arange(rows) + np.cumsum(ended) - ended
            self._finals = self._at[ended] + 1
            self._ends[2, self._finals] = True
        self._views = [None if place.column else place.views(records) for place in layout.places]
        self._frames: list[Any] = [None] * (len(layout.columns) - 1)
        places = zip(layout.places, self._views, strict=True)
        self.put = [
            self._column_setter(p) if view is None else self._setter(p.label, p.field, view) for p, view in places
        ]
        self.put_reward = self._setter("reward", _REWARD, records.view(np.float32)[:, REWARD_OFFSET // 4])
        self._put_ends = [
            self._setter(name, _FLAG, self._ends[i]) for i, name in enumerate(("terminated", "truncated"))
        ]
        self._append = native.rows_adder(records, self._ends.view(np.uint8), boundaries)

    def put_ends(self, terminated: Any, truncated: Any) -> None:
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

    def put_final(self, place: Place, array: NDArray[Any]) -> None:
        """Stages a field of the boundary rows."""
        view = self._views[place.number]
        if view is None:
            view = self._frames[place.column - 1] = np.zeros((self._all, *place.field.shape), place.field.dtype)
        view[self._finals] = array

    def append(self) -> int:
        """The first row's ticket, or a negative code."""
        return self._append(self._frames)

    def release_frames(self) -> None:
        """Releases the caller's arrays."""
        if self._frames:
            self._frames[:] = [None] * len(self._frames)

    def _setter(self, label: str, field: Field, view: NDArray[Any]) -> Put:
        at, rows, dtype, shape = self._at, self.rows, field.numpy, (self.rows, *field.shape)

        def put(value: Any) -> None:
            if value.__class__ is np.ndarray and value.dtype == dtype and value.shape == shape:
                view[at] = value
            else:
                view[at] = rows_of(label, field, value, rows)

        return put

    def _column_setter(self, place: Place) -> Put:
        at, rows, every_row, frames, column = self._at, self.rows, self._all, self._frames, place.column - 1

        def put(value: Any) -> None:
            array = rows_of(place.label, place.field, value, rows)
            if at is _ALL:
                frames[column] = np.ascontiguousarray(array)
                return
            if frames[column] is None:
                frames[column] = np.zeros((every_row, *place.field.shape), place.field.dtype)
            frames[column][at] = array

        return put
