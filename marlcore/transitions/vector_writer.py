"""The writer of several lanes: it checks and stages a row for each lane, and appends all rows by one call."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import brief, check_finite
from ..fixed import fixed
from ..memory import File, NativeVector, invalidate_after_fork, one_thread
from ..observations import nested
from ..spec import ACTION, Field, as_field
from .layout import LaneView, rewards_of
from .staging import VectorStaging
from .writer_base import VectorGate, WriterBase

Ints = NDArray[np.int64]


@fixed()
class VectorWriter(WriterBase):
    """Appends transitions to several lanes, one a lane in each call; made by `vector_writer` of a replay or queue.

    It serves vectorised environments: copy i of the environment writes to lane i. A call costs little more than one
    `Writer.add`, plus about 30 ns for each row of a few floats. Values, checks, errors and the rule for threads are
    those of `Writer`.

    Attributes:
        lanes: the lanes' numbers, in the order of the rows.
    """

    _native: NativeVector

    def __init__(
        self, view: LaneView, lanes: Sequence[int], claim: File, timeout: float | None, gate: VectorGate | None
    ) -> None:
        self.lanes = tuple(lanes)
        self._gate = gate
        self._view = view
        self._records = np.zeros((2 * len(lanes), view.layout.record_bytes), np.uint8)
        large = [place for place in view.layout.places if place.column and place.role != "obs"]
        blank = {place.column: np.zeros(place.field.nbytes, np.uint8) for place in large}
        native = NativeVector(view.native, self.lanes, blank, not view.spec.next_obs)
        super().__init__(claim, native, timeout)
        # At lane + 1, the index of the lane's writer; -1 for other lanes, and at both ends for numbers of no lane.
        self._places = np.full(max(self.lanes) + 3, -1)
        self._places[np.add(self.lanes, 1)] = np.arange(len(self.lanes))
        self._stagings: dict[int, VectorStaging] = {}  # keyed by the number of rows
        self._every_lane = self._new_staging(self._records)
        self._every_lane.which[:] = np.arange(len(self.lanes))
        invalidate_after_fork(self)

    @one_thread
    def add(
        self,
        /,
        obs: Any,
        action: ArrayLike,
        reward: ArrayLike,
        terminated: ArrayLike | None = None,
        truncated: ArrayLike | None = None,
        final_obs: Any = None,
        lanes: ArrayLike | None = None,
        **extras: Any,
    ) -> Ints:
        """Appends one transition to each of k lanes; the lane's next `obs` is the observation that follows.

        Every value of every row is checked before the first write, so that a bad value leaves all lanes unchanged. The
        lanes are then written one after another: each row appears whole, but a process killed inside the call leaves
        rows in some lanes and none in the others.

        Args:
            obs: the observations acted on, [k, *shape]; a dict of arrays when the spec's obs is one.
            action: [k, *shape].
            reward: [k], finite.
            terminated, truncated: bool [k]; None if no row ended its episode.
            final_obs: the observations after the last actions, [k, *shape]; only those of ended episodes
                are stored; needed if a row is truncated, unless the spec stores next_obs. All rows are checked.
            lanes: int [k], which of this writer's lanes get the rows, each at most once; None: all, in their order.
            extras: every extra field of the spec, and next_obs when the spec stores it, each [k, *shape].

        Returns: the rows' tickets, int64 [k]; see `Writer.add`. A ticket is -1 if a queue with "drop_newest" had no
            room: the row was left out, and the next row of its lane begins an episode.

        Raises:
            ValueError, TypeError: a field is missing, unknown, or of another shape, dtype or range; a lane is not one
                of this writer's, or comes twice.
            ClosedError: the writer was closed. SegmentCorrupt: a lane's counters were damaged.
            TimeoutError: the writer's timeout has passed; nothing was written. UsedByTwoThreads: see `Writer`.
        """
        finals = final_obs is not None
        if finals and self._view.spec.next_obs:
            raise ValueError("final_obs: expected None, since this spec stores next_obs")
        staging = self._every_lane if lanes is None else self._staging_of(lanes)
        try:
            staging.put_reward(reward)
            staging.put_ends(terminated, truncated, final_obs)
            staging.put(obs, action, extras)
            self._append(staging, finals, lanes)
            return staging.tickets.copy()
        finally:
            staging.lent.clear()

    def _append(self, staging: VectorStaging, finals: bool, lanes: ArrayLike | None) -> None:
        if self._gate is not None:
            boundaries = staging.ended() if finals else staging.never
            check = partial(self._check, staging, finals, lanes)
            staging.left_out[:] = self._gate(staging.which, boundaries, self._timeout, check)
        if code := staging.append(finals):
            self._refuse(code, lanes)

    def _check(self, staging: VectorStaging, finals: bool, lanes: ArrayLike | None) -> None:
        """Checks the staged rows like an append, so that an invalid one neither waits nor counts as dropped."""
        if code := staging.check(finals):
            self._refuse(code, lanes)

    def new_episode(self, lanes: ArrayLike | None = None) -> None:
        """Makes the next row of these lanes, by default of all, begin an episode; no sample crosses the seam."""
        if lanes is None:
            self._native.new_episode(range(len(self.lanes)))
            return
        which = self._indices(_numbers(lanes)).tolist()
        if -1 in which:
            raise self._lanes_error(lanes)
        self._native.new_episode(which)

    def __repr__(self) -> str:
        return f"<VectorWriter of {len(self.lanes)} lanes>"

    def _new_staging(self, records: NDArray[np.uint8]) -> VectorStaging:
        return VectorStaging(self._native, self._view, records)

    def _staging_of(self, lanes: ArrayLike) -> VectorStaging:
        """Returns staging for these lanes; later calls with as many rows reuse it. Unknown lanes are -1 in `which`."""
        numbers = _numbers(lanes)
        rows = len(numbers)
        staging = self._stagings.get(rows)
        if staging is None:
            if not 1 <= rows <= len(self.lanes):
                raise self._lanes_error(lanes)
            staging = self._stagings[rows] = self._new_staging(self._records[: 2 * rows])
        staging.which[:] = self._indices(numbers)
        return staging

    def _indices(self, numbers: Ints) -> Ints:
        return self._places.take(numbers + 1, mode="clip")

    def _refuse(self, code: int, lanes: ArrayLike | None) -> NoReturn:
        if code == -errno.EINVAL and lanes is not None:
            which = self._indices(_numbers(lanes))
            if (which < 0).any() or len(set(which.tolist())) < len(which):
                raise self._lanes_error(lanes)
        raise self._error_of(code)

    def _lanes_error(self, lanes: ArrayLike) -> ValueError:
        return ValueError(f"lanes: expected different lanes of {brief(self.lanes)}, got {brief(lanes)}")


class HeldRows:
    """Transitions of several environments: assign their values, then `append` them with the ends of episodes.

    One thread may use it.

    Attributes:
        writer: the VectorWriter that appends the rows.
        obs: an array [rows, *shape], or a dict of arrays if the spec's obs is one.
        action: [rows, *shape].
        reward: float32 [rows], or [rows, n] for vectors; `append` refuses numbers that are not finite.
        extras: arrays [rows, *shape], by name.
    """

    def __init__(self, writer: VectorWriter, rows: int) -> None:
        view = writer._view
        records = np.zeros((2 * rows, view.layout.record_bytes), np.uint8)
        self.writer, self._records = writer, records[::2]
        self._staging = writer._new_staging(records)
        self._staging.which[:] = np.arange(rows)

        def arrays(role: str) -> dict[str, NDArray[Any]]:
            """Returns arrays by name: views of the records for small fields, new arrays for large ones."""
            places = {place.name: place for place in view.layout.of_role(role)}
            large = {name: place.field.zeros(rows) for name, place in places.items() if place.column}
            self._large |= {places[name].column: array for name, array in large.items()}
            return {name: place.views(self._records) for name, place in places.items() if not place.column} | large

        self._large: dict[int, NDArray[Any]] = {}  # by column
        spec = view.spec
        self.obs, self.extras = nested(arrays("obs"), spec.obs), nested(arrays("extra"), spec.extras)
        self.action, self.reward = nested(arrays("action"), spec.action, ACTION), rewards_of(spec, self._records)

    def append(self, which: Any, terminated: Any, truncated: Any, final_obs: Any, lanes: Any = None) -> None:
        """Appends the rows `which`, a slice or row numbers, int64 [k]; see `VectorWriter.add`.

        `terminated` and `truncated` are both None or both given.
        """
        writer, staging = self.writer, self._staging
        if not isinstance(which, slice):
            staging = writer._staging_of(lanes)
            staging.records[::2] = self._records[which]
        elif lanes is not None:
            staging.which[:] = writer._indices(lanes)
        if self.reward.ndim > 1:  # the core checks only a row's first number
            check_finite("reward", self.reward[which])
        try:
            if staging.some_ended or terminated is not None or final_obs is not None:
                staging.put_ends(terminated, truncated, final_obs)
            for column, array in self._large.items():
                staging.lend(column, array[which])
            writer._append(staging, final_obs is not None, lanes)
        finally:
            if staging.lent:
                staging.lent.clear()


def _numbers(lanes: ArrayLike) -> Ints:
    if lanes.__class__ is np.ndarray and lanes.dtype == np.int64 and lanes.ndim == 1:
        return lanes
    array = np.asarray(lanes)
    if array.dtype.kind == "b":
        raise TypeError(f"lanes: expected lane numbers, got the mask {brief(lanes)}; pass np.flatnonzero of it")
    return as_field("lanes", Field((max(1, array.size),), "int64"), array)
