"""The writer of one lane: it checks a transition, stages it, and appends it with one call."""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable
from functools import partial
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import brief
from ..errors import TimedOut
from ..fixed import fixed
from ..memory import (
    BOUNDARY,
    TERMINATED,
    TRUNCATED,
    WAIT_SLICE_S,
    File,
    NativeWriter,
    add_lock,
    check_interruption,
    invalidate_after_fork,
    let_in,
    one_thread,
)
from ..observations import leaves
from ..spec import Field, as_field, as_flag, rows_of
from .layout import REWARD_OFFSET, LaneView, Place, rewards_of
from .setters import FieldSetters, RewardVector, Setter, put_all, setter
from .staging import BatchStaging
from .writer_base import Gate, WriterBase

_FLAG = Field((), "bool")
_REWARD = Field((), "float32")
_MOST_STAGED = 4096  # rows of all batches whose staging is kept, or those of the last batch
_NO: Any = np.False_  # the only object of its value


@fixed()
class Writer(WriterBase):
    """Appends transitions to one lane; made by `ReplayBuffer.writer` or `TrajectoryQueue.writer`.

    Any thread may use the writer, but only one at a time: a second thread inside it gets UsedByTwoThreads. Any thread
    may call `close`.

    Every value is checked before the first write, so that a bad value leaves the replay unchanged. Values of another
    dtype are accepted if NumPy calls the conversion safe or of the same kind (float64 to float32, not float to int), if
    they are integers in the field's range, or 0 and 1 for bools. Rewards must be finite; other floats may be NaN or
    infinite, but a finite float64 beyond float32's range is refused. Tensors of torch on the CPU are taken like arrays;
    one that requires grad is detached, with one warning per process.

    Attributes:
        lane: the lane's number.
        policy_version: the version of the acting weights, stored with every later row; 0 at first.
    """

    _native: NativeWriter

    def __init__(
        self, view: LaneView, lane: int, claim: File, shared: bool, timeout: float | None, gate: Gate | None
    ) -> None:
        self.lane = lane
        self._gate = gate
        self._view = view
        self._records = np.zeros((2, view.layout.record_bytes), np.uint8)  # the transition's and the boundary row's
        self._slice_s = WAIT_SLICE_S if timeout is None else min(timeout, WAIT_SLICE_S)
        lock = (claim.fd, add_lock(view.geometry.lanes, lane), self._slice_s) if shared else None
        super().__init__(claim, NativeWriter(view.native, lane, self._records, lock), timeout)
        self._keep: dict[tuple[int, bool], Any] = {}  # frames lent to the C core for the next row
        self._add_row = self._native.add_row
        self._raw = self._native.raw
        self._reward: Any = self._records[0, REWARD_OFFSET : REWARD_OFFSET + 4].data.cast("f")
        if view.spec.reward.shape:
            self._reward = RewardVector(view.spec.reward, rewards_of(view.spec, self._records)[0])
        fields = FieldSetters(view.spec, view.layout, self._setter)
        self._put_obs, self._put_final, self._put_action = fields.obs, fields.final_obs, fields.action
        self._extras = fields.extras
        self._stagings: dict[tuple[int, int], BatchStaging] = {}  # by the numbers of rows and of boundary rows
        self._spare_rows = int(gate is not None)  # the newest row holds the number of written transitions
        invalidate_after_fork(self)

    def add(
        self,
        /,
        obs: Any,
        action: Any,
        reward: float,
        terminated: bool = False,
        truncated: bool = False,
        final_obs: Any = None,
        **extras: Any,
    ) -> int:
        """Appends one transition; the next call's `obs` is the observation that follows.

        Args:
            obs: the observation acted on; a dict when the spec's obs is one.
            action: the action taken.
            reward: the action's reward, finite; a vector if the spec's reward is one.
            terminated: the episode ended in a terminal state. Like `truncated` a bool, or 0 or 1, also as an array or
                tensor without axes.
            truncated: the episode was cut off; needs `final_obs`, from which its return is bootstrapped.
            final_obs: the observation after the last action; only with terminated or truncated.
            extras: every extra field of the spec, and next_obs when the spec stores it.

        Returns: the transition's ticket, counted from 0 in this lane; a final_obs takes the ticket after it. -1 if a
            queue with "drop_newest" has no room: nothing was written, and the next row begins an episode.

        Raises:
            ValueError, TypeError: a field is missing, unknown, or of another shape, dtype or range.
            ClosedError: the writer was closed. SegmentCorrupt: the lane's counters were damaged.
            TimeoutError: the writer's timeout has passed; nothing was written. UsedByTwoThreads: see the class.
        """
        inside, me = self._inside, get_ident()
        if inside:
            let_in(self)
        inside[me] = None
        try:
            if len(inside) > 1:
                let_in(self)
            flags = 0
            ends = terminated is not False and terminated is not _NO
            if ends or (truncated is not False and truncated is not _NO) or final_obs is not None:
                flags = self._ending(terminated, truncated, final_obs)
            self._put_obs(obs)
            self._put_action(action)
            try:
                self._reward[0] = reward
            except (TypeError, ValueError) as error:
                vector = self._view.spec.reward.shape
                raise error if vector else TypeError(f"reward: expected a number, got {brief(reward)}") from None
            if extras or self._extras:
                put_all("extras", self._extras, extras)
            began = None
            if self._gate is not None:
                began = time.monotonic()
                if not self._gate(1, bool(flags & BOUNDARY), self._timeout, self._check_row):
                    return self._leave_out()
            ticket: int = self._add_row(self._raw, flags)
            if ticket < 0:
                if ticket == -errno.EDOM:
                    as_field("reward", _REWARD, reward)  # refuses a finite one that float32 does not hold
                ticket = self._again(ticket, partial(self._add_row, self._raw, flags), began, f"lane {self.lane}")
            return ticket
        finally:
            del inside[me]

    @one_thread
    def add_batch(
        self,
        /,
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
            final_obs: [number of truncated rows, *shape], in the order of these rows; None or empty without them.

        Returns: the first transition's ticket, or -1 as from `add`.

        Raises the errors of `add`; ValueError also if the rows, each final_obs included, exceed the lane's capacity, or
        capacity - 1 in a queue or in a replay with a limiter.
        """
        try:
            rows = len(reward)  # type: ignore[arg-type]
        except TypeError:
            rows = 0
        if not rows:
            raise ValueError(f"reward: expected an array of shape (T,) with T of at least 1, got {brief(reward)}")
        staging = self._staging_of(rows, truncated, final_obs)
        began = None
        try:
            staging.put_reward(reward)
            staging.put_ends(terminated, truncated, final_obs if staging.boundaries else None)
            staging.put(obs, action, extras)
            if self._gate is not None:
                began = time.monotonic()
                check = partial(self._check_rows, staging)
                if not self._gate(rows, staging.boundaries, self._timeout, check):
                    return self._leave_out()
            ticket = staging.append()
            return ticket if ticket >= 0 else self._again(ticket, staging.append, began, f"lane {self.lane}")
        finally:
            staging.lent.clear()

    @one_thread
    def end_episode(self, *, final_obs: Any, truncated: bool = True) -> int:
        """Truncates the episode after its last row, for programs that learn of a truncation only after the `add`.

        The row itself is not changed: a boundary row with `final_obs` follows it, which tells samplers and readers of
        the truncation. A row whose return needs later rows is drawn or read only after this call or the next
        `add`, so no batch shows the row without its end.

        Args:
            final_obs: the observation after the last action, from which the last row's return is bootstrapped.
            truncated: True; a terminal state has no boundary row, so `add` must get it together with its row.

        Returns: the boundary row's ticket; -1 if a queue with "drop_newest" has no room: then the last row cannot be
            read either, and the next row begins an episode.

        Raises:
            ValueError: this writer's last row ended its episode, or it has added no row; `truncated` is False; the
                spec stores next_obs, so there are no boundary rows.
            The errors of `add`; nothing was written then.
        """
        self.check_open()
        if self._view.spec.next_obs:
            raise ValueError("end_episode: expected a spec without next_obs, since rows must follow one another")
        if not as_flag("truncated", truncated):
            raise ValueError("truncated: expected True, got False; `add` has terminated=True for other ends")
        if not self._native.in_episode:
            raise ValueError("end_episode: expected an unfinished episode, got none")
        self._put_final(final_obs)
        if self._gate is not None and not self._gate(0, True, self._timeout, self.check_open):
            return self._leave_out()
        ticket = self._native.end_episode()
        if ticket < 0:
            raise self._error_of(ticket)
        return ticket

    def new_episode(self) -> None:
        """Makes the next row begin an episode, however the last row ended; no sample crosses the seam."""
        self._native.new_episode()

    def __repr__(self) -> str:
        return f"<Writer of lane {self.lane}>"

    def _again(self, code: int, append: Callable[[], int], began: float | None, label: str) -> int:
        """While others hold the shared lane, repeats an append that returned `code`; the timeout runs from `began`."""
        began = time.monotonic() - self._slice_s if began is None else began
        while code in (-errno.EAGAIN, -errno.EINTR):
            if self._timeout is not None and time.monotonic() >= began + self._timeout:
                waited = f"this writer waited {self._timeout} seconds while another one was inside an add"
                raise TimedOut(f"{label}: {waited}")
            check_interruption()
            code = append()
        if code < 0:
            raise self._error_of(code)
        return code

    def _check_row(self) -> None:
        """Checks the staged row like an append, so that an invalid row neither waits nor counts as dropped."""
        self.check_open()
        if not math.isfinite(self._reward[0]):
            raise self._error_of(-errno.EDOM)

    def _check_rows(self, staging: BatchStaging) -> None:
        self.check_open()
        code = staging.check()
        if code < 0:
            raise self._error_of(code)

    def _leave_out(self) -> int:
        """Leaves out rows that find no room, and returns -1; as they are missing, the next row begins an episode."""
        self._native.new_episode()
        return -1

    def _ending(self, terminated: Any, truncated: Any, final_obs: Any) -> int:
        flags = TERMINATED * as_flag("terminated", terminated) | TRUNCATED * as_flag("truncated", truncated)
        if final_obs is None:
            if flags & TRUNCATED and not self._view.spec.next_obs:
                raise ValueError("final_obs: expected the observation after a truncated transition, got None")
            return flags
        if self._view.spec.next_obs:
            raise ValueError("final_obs: expected None, since this spec stores next_obs")
        if not flags:
            raise ValueError("final_obs: expected None unless terminated or truncated")
        self._put_final(final_obs)
        return flags | BOUNDARY

    def _setter(self, place: Place, label: str, final: bool) -> Setter:
        """Returns a setter that checks and stages one value; it lends a large value to the C core, which copies it."""
        if not place.column:
            return setter(label, place.field, place.views(self._records)[final : final + 1])
        field, dtype, shape = place.field, place.field.numpy, place.field.shape
        set_frame, keep, key = self._native.set_frame, self._keep, (place.column, final)
        if place.role != "obs":  # the core copies every column of a boundary row too
            keep[place.column, True] = set_frame(place.column, np.zeros(shape, dtype), True)

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

    def _staging_of(self, rows: int, truncated: Any, final_obs: Any) -> BatchStaging:
        """Returns staging; batches with as many rows and as many boundary rows reuse it."""
        if final_obs is None:
            return self._kept_staging(rows, 0)
        ended = np.zeros(rows, np.bool_) if truncated is None else rows_of("truncated", _FLAG, truncated, rows)
        boundaries = int(np.count_nonzero(ended))
        if self._view.spec.next_obs or not (boundaries or all(map(_is_empty, leaves(final_obs).values()))):
            raise ValueError("final_obs: expected None unless rows are truncated and the spec stores no next_obs")
        staging = self._kept_staging(rows, boundaries)
        if boundaries:
            staging.merge(ended)
        return staging

    def _kept_staging(self, rows: int, boundaries: int) -> BatchStaging:
        kept, key = self._stagings, (rows, boundaries)
        if key not in kept:
            if sum(map(sum, kept)) + rows + boundaries > _MOST_STAGED:
                kept.clear()
            kept[key] = BatchStaging(self._native, self._view, rows, self._spare_rows, boundaries)
        return kept[key]


def _is_empty(rows: Any) -> bool:
    return bool(rows.shape[:1] == (0,)) if hasattr(rows, "shape") else rows in ([], ())
