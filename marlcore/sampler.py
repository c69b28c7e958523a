"""Drawing batches of transitions from a replay's lanes: choose, copy, validate, draw the lapped ones again."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ._native import Event, NativeLanes
from .batch import Batch, BatchLayout
from .errors import MarlcoreError, NotEnoughData
from .kernels import gather as kernels
from .lane import LaneGeometry
from .record import RecordLayout
from .shm import Segment
from .spec import TransitionSpec

__all__ = ["Sampler", "SamplerStats"]

LAP_LIMIT_S = 10.0
WAIT_SLICE_S = 0.1


@dataclass
class SamplerStats:
    """What a sampler did so far.

    Attributes:
        drawn: rows returned.
        lapped: rows that a writer overwrote while they were copied; drawn again.
        redrawn: all further draws: for lapped rows, and for rows that were no whole transition.
        waited: seconds slept for data.
    """

    drawn: int = 0
    lapped: int = 0
    redrawn: int = 0
    waited: float = 0.0


@dataclass(frozen=True)
class SamplerOptions:
    """How a sampler draws; see `ReplayBuffer.sampler`."""

    batch_size: int
    stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    seed: int | None = None
    pad: Literal["repeat", "zero"] = "repeat"
    min_size: int | None = None

    def check(self, spec: TransitionSpec, lane_rows: int) -> None:
        """Raises ValueError or TypeError: a field, what was expected and what came."""
        for name in ("batch_size", "stack", "n_step"):
            value = getattr(self, name)
            if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}")
        if not spec.next_obs and self.stack + self.n_step > lane_rows:
            raise ValueError(
                f"stack + n_step: expected at most the {lane_rows} rows of a lane, got {self.stack} + {self.n_step}"
            )
        if spec.next_obs and (self.stack > 1 or self.n_step > 1):
            raise ValueError(
                "stack, n_step: expected 1 and 1, since rows of a spec with next_obs do not follow one another, "
                f"got {self.stack} and {self.n_step}"
            )
        if not isinstance(self.gamma, (int, float, np.number)) or not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma: expected a number from 0 to 1, got {self.gamma!r}")
        if self.seed is not None and (not isinstance(self.seed, (int, np.integer)) or self.seed < 0):
            raise ValueError(f"seed: expected an integer of at least 0 or None, got {self.seed!r}")
        if self.pad not in ("repeat", "zero"):
            raise ValueError(f"pad: expected 'repeat' or 'zero', got {self.pad!r}")
        if self.min_size is not None and (not isinstance(self.min_size, (int, np.integer)) or self.min_size < 1):
            raise ValueError(f"min_size: expected an integer of at least 1, got {self.min_size!r}")


class Sampler:
    """Draws uniform batches from one replay; made by `ReplayBuffer.sampler`. Not for several threads at once.

    A row can be drawn when it is a transition whose stack is held whole, and whose next n steps are held too or end
    with the episode. Each such row of all lanes is equally likely, with replacement.

    Attributes:
        stats: what was drawn, lapped, drawn again and waited.
    """

    def __init__(
        self,
        segment: Segment,
        lanes: NativeLanes,
        geometry: LaneGeometry,
        layout: RecordLayout,
        spec: TransitionSpec,
        options: SamplerOptions,
    ) -> None:
        options.check(spec, geometry.capacity)
        self.stats = SamplerStats()
        self._segment = segment
        self._options = options
        self._lanes = lanes
        self._lane_rows = geometry.capacity
        self._event = Event(segment.body)
        self._batch = BatchLayout(spec, layout, geometry, options.batch_size, options.stack, options.n_step)
        self._enough = False
        self._pool: list[_Storage] = []
        self._body = segment.body
        self._words = segment.body.view(np.uint32)
        self._floats = segment.body.view(np.float32)
        self._state = np.random.SeedSequence(options.seed).generate_state(4, np.uint64)
        self._table = np.array(
            [geometry.column_offset(0), geometry.stride(0), geometry.capacity, geometry.lanes,
             options.stack, options.n_step, spec.next_obs], np.int64)  # fmt: skip
        self._windows = np.zeros((3, geometry.lanes), np.int64)
        self._read_windows = lanes.windows(self._windows[0], self._windows[1])
        self._chosen = np.zeros((6, options.batch_size), np.int64)
        self._ok = np.zeros(options.batch_size, np.uint8)
        self._validate = lanes.validator(self._chosen[kernels.LANE], self._chosen[kernels.LOWEST], self._ok)
        self._all_rows = np.arange(options.batch_size)
        # Nothing is drawn here, but the kernels are compiled or loaded now and not by the first sample.
        self._copy(self._storage(), self._all_rows[:0], self._plan(self._storage(), self._all_rows[:0]))

    def can_sample(self) -> bool:
        """Whether `sample` would return a batch now: enough transitions are held and one can be drawn."""
        self._segment.check_open()
        state, redrawn = self._state.copy(), self.stats.redrawn
        able = self._has_enough() and self._draw(self._storage(), self._all_rows[:1]) == 1
        self._state[:], self.stats.redrawn = state, redrawn  # asking does not change what is drawn next
        return able

    def sample(self, timeout: float | None = None) -> Batch:
        """A batch.

        Args:
            timeout: seconds to wait for data; None does not wait.

        Raises:
            NotEnoughData: without a timeout, fewer than min_size transitions are held or none is whole.
            TimeoutError: the same, after the timeout.
            MarlcoreError: writers overwrote every draw for 10 seconds.
            ClosedError: the replay was closed.
        """
        self._segment.check_open()
        deadline = None if timeout is None else time.monotonic() + timeout
        if not self._enough and not self._has_enough():
            self._wait(self._has_enough, deadline)
        storage = self._storage()
        rows, lapped_since = self._all_rows, None
        while len(rows):
            filled = self._draw(storage, rows)
            if filled == 0:
                self._wait(partial(self._draw, storage, rows[:1]), deadline)
                continue
            rows = self._copy(storage, rows, filled)
            if len(rows):
                lapped_since = lapped_since or time.monotonic()
                if time.monotonic() - lapped_since > LAP_LIMIT_S:
                    raise MarlcoreError(f"{self._segment.path}: writers overwrote every draw; use a larger capacity")
        self.stats.drawn += self._options.batch_size
        return Batch(storage.fields)

    def _has_enough(self) -> bool:
        held = sum(self._lanes.transitions(lane) for lane in range(self._lanes.count))
        # Full lanes never hold more, and some of their rows may be boundary rows.
        full = all(self._lanes.committed(lane) >= self._lane_rows for lane in range(self._lanes.count))
        self._enough = full or held >= (self._options.min_size or self._options.batch_size)
        return self._enough

    def _draw(self, storage: _Storage, rows: NDArray[np.int64]) -> int:
        """Chooses transitions for output rows; how many slots were filled, 0 when nothing is sampleable."""
        return self._plan(storage, rows) or self._draw_from_list(storage, rows)

    def _plan(self, storage: _Storage, rows: NDArray[np.int64]) -> int:
        """Chooses by drawing at random, until too many draws in a row were refused."""
        self._read_windows()
        filled: int
        filled, refused = kernels.plan(
            self._words, self._floats, self._table, self._options.gamma, self._windows, self._state, rows, len(rows),
            self._chosen, storage.numbers, storage.ends,
        )  # fmt: skip
        self.stats.redrawn += refused
        return filled

    def _draw_from_list(self, storage: _Storage, rows: NDArray[np.int64]) -> int:
        """The same where nearly every draw is refused: lists the sampleable rows first."""
        found = np.empty((2, int(np.sum(self._windows[1] - self._windows[0]))), np.int64)
        listed = kernels.list_sampleable(
            self._words, self._floats, self._table, self._options.gamma, self._windows,
            self._chosen, storage.numbers, storage.ends, rows[0], found,
        )  # fmt: skip
        if not listed:
            return 0
        filled: int = kernels.plan_from(
            self._words, self._floats, self._table, self._options.gamma, self._windows, self._state, rows, len(rows),
            self._chosen, storage.numbers, storage.ends, found, listed,
        )  # fmt: skip
        return filled

    def _copy(self, storage: _Storage, rows: NDArray[np.int64], filled: int) -> NDArray[np.int64]:
        """Copies what was chosen and asks whether it stayed whole; the output rows that are to be drawn again."""
        kernels.gather(
            self._body, self._words, self._table, self._windows, filled, self._chosen,
            self._batch.frames, self._batch.fields,
            self._options.pad == "repeat", storage.root, storage.tags, storage.valid,
        )  # fmt: skip
        lapped = self._validate(filled)
        if not lapped and filled == len(rows):
            return rows[:0]
        self.stats.lapped += lapped
        self.stats.redrawn += lapped
        again = self._chosen[kernels.ROW, :filled][self._ok[:filled] == 0]
        return np.concatenate([again, rows[filled:]])

    def _wait(self, ready: Callable[[], int], deadline: float | None) -> None:
        """Sleeps until `ready()`, woken by writers; in slices, so that signals are seen."""
        began = time.monotonic()
        while True:
            seen = self._event.prepare()
            if ready():
                break
            if deadline is None:
                raise NotEnoughData(f"{self._segment.path}: {self._shortage()}")
            left = deadline - time.monotonic()
            if left <= 0:
                self.stats.waited += time.monotonic() - began
                raise TimeoutError(f"{self._segment.path}: {self._shortage()}")
            self._event.wait(seen, min(left, WAIT_SLICE_S))
            self._segment.check_open()
        self.stats.waited += time.monotonic() - began

    def _shortage(self) -> str:
        held = sum(self._lanes.transitions(lane) for lane in range(self._lanes.count))
        needed = self._options.min_size or self._options.batch_size
        if held < needed:
            return f"expected at least {needed} transitions, got {held}"
        return f"none of the {held} transitions has its stack and its next {self._options.n_step} steps held whole"

    def _storage(self) -> _Storage:
        """Memory for a batch: of one that its user has let go of, if there is one."""
        for storage in self._pool:
            if storage.is_free():
                return storage
        storage = _Storage(self._batch)
        self._pool.append(storage)
        return storage


class _Storage:
    """The memory of one batch, used again once nobody has the batch or an array of it."""

    def __init__(self, layout: BatchLayout) -> None:
        # Written now, once: first touches in the middle of a batch's copies would cost more than the copies.
        self.root = np.full(layout.plan.nbytes, 0, np.uint8)
        blocks = [layout.plan.arrays[name].of(self.root) for name in ("numbers", "ends", "tags", "valid")]
        self.numbers, self.ends, self.tags, self.valid = blocks
        self.fields = layout.carve(self.root)
        self._arrays = [self.root, *layout.flatten(self.fields)]
        self._unused = self._references()

    def is_free(self) -> bool:
        return self._references() == self._unused

    def _references(self) -> int:
        # An array made of one of these refers to the root, so that every way to reach the memory counts.
        return sum(map(sys.getrefcount, self._arrays))
