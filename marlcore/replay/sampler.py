"""Samplers: batches drawn from one replay, as fast as its limiter allows.

A sampler chooses rows, copies them, validates the copies, and draws rows that a writer overwrote meanwhile again.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import check_type, check_whole, deadline_of, state_array
from ..errors import MarlcoreError, NotEnoughData, TimedOut
from ..kernels import uniform
from ..kernels.rows import HI
from ..memory import one_thread, sleep_until
from ..transitions import LAP_LIMIT_S, Batch, BatchMemory, LaneView, ReadPlan, Window
from .hindsight import Hindsight, Relabelling
from .limiter import RateLimiter, SampleGate, Share
from .prioritized import Prioritized, PriorityTree

EQUAL = Prioritized(alpha=0.0)


class Uniform:
    """The strategy without priorities: all transitions or sequences that can be drawn are equally likely."""

    all_zero = False  # if no row can be drawn, whether only priorities of 0 prevent it

    def __init__(self, read_plan: ReadPlan) -> None:
        self._read_plan = read_plan
        self._one_ticket = np.zeros((2, 1), np.int64)

    def prepare(self, memory: BatchMemory) -> None:
        """Compiles or loads the kernels without drawing."""
        d = self._read_plan
        uniform.draw(d.plan, d.columns, memory.address, np.empty(0, np.int64))
        self.can_draw()

    def can_draw(self) -> bool:
        """Whether any row can be drawn; the call changes no draw, past or future."""
        self._read_plan.read_windows()
        return bool(uniform.list_sampleable(self._read_plan.plan, self._one_ticket))

    def draw(self, memory: BatchMemory, rows: NDArray[np.int64]) -> tuple[int, int]:
        """Chooses and copies transitions for output rows, slot i for rows[i]: (slots filled, draws refused).

        It fills no slot if no row can be drawn.
        """
        d = self._read_plan
        d.read_windows()
        filled, refused = uniform.draw(d.plan, d.columns, memory.address, rows)
        return filled or self.draw_listed(memory, rows), refused

    def draw_listed(self, memory: BatchMemory, rows: NDArray[np.int64]) -> int:
        """`draw` if nearly every draw is refused: first lists the tickets that can be drawn."""
        d = self._read_plan
        tickets = np.empty((2, int(np.sum(d.windows[1] - d.windows[0]))), np.int64)
        listed = uniform.list_sampleable(d.plan, tickets)
        return int(uniform.draw_listed(d.plan, d.columns, memory.address, rows, tickets, listed)) if listed else 0

    def weigh(self, memory: BatchMemory, rows: NDArray[np.int64]) -> None:
        """The kernels wrote weights of 1."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """There is no state to restore."""


@dataclass
class SamplerStats:
    """A sampler's counters.

    Attributes:
        drawn: rows returned.
        lapped: rows that a writer overwrote while they were copied; drawn again.
        redrawn: all repeated draws, of lapped rows and of rows that were not a whole transition.
        waited: seconds slept for data.
        ignored: priorities for rows that were overwritten meanwhile, or never drawn.
    """

    drawn: int = 0
    lapped: int = 0
    redrawn: int = 0
    waited: float = 0.0
    ignored: int = 0


class Sampler:
    """Draws batches from one replay; made by `ReplayBuffer.sampler`. For one thread at a time.

    A transition can be drawn if the replay holds its whole stack and its next n steps, or those to the episode's end; a
    sequence, if that holds for all its transitions. Draws are uniform with replacement, or follow the priorities.

    If it is not `alone`, because a mixture has several samplers of this replay, writers keep to the limiter until the
    mixture calls `_starve`.

    Attributes:
        stats: rows drawn, lapped and drawn again, and the time waited.
        prioritized: the options of prioritized drawing; None for uniform drawing.
    """

    def __init__(
        self,
        lanes: LaneView,
        window: Window,
        batch_size: int,
        min_size: int | None,
        prioritized: Prioritized | None,
        seed: int | None,
        alone: bool = True,
        hindsight: Hindsight | None = None,
    ) -> None:
        check_whole("batch_size", batch_size)
        min_size = batch_size if min_size is None else min_size
        check_whole("min_size", min_size)
        if seed is not None:
            check_whole("seed", seed, 0)
        window.check(lanes.spec, lanes.geometry.capacity)
        window.check_periods(lanes.spec, lanes.geometry.capacity)
        check_type("prioritized", prioritized, Prioritized, or_none=True)
        if prioritized is not None:
            prioritized.check(lanes.spec)
        check_type("hindsight", hindsight, Hindsight, or_none=True)
        self.stats = SamplerStats()
        self.prioritized = prioritized
        self._batch_size, self._least = int(batch_size), int(min_size)
        limiter = RateLimiter.of(lanes.segment)
        self._gate: SampleGate | None = None
        if limiter is not None:  # it counts all lanes
            self._gate = SampleGate(lanes.of(lanes.geometry.whole), limiter, self._batch_size)
        self._alone = alone
        self._view = lanes
        self._window = window
        self._inside: dict[int, None] = {}  # see guard.py
        self._enough = False
        self._cleared_at = 0  # the transitions inserted before
        self._read_plan = ReadPlan(lanes, window, self._batch_size, hindsight is not None)
        self._relabelling = Relabelling(hindsight, lanes, window, self._read_plan) if hindsight else None
        self._all_rows = np.arange(self._batch_size)
        self._read_plan.generator[:] = np.random.SeedSequence(seed).generate_state(4, np.uint64)
        if prioritized is None and window.period > 1:
            prioritized = EQUAL  # few rows begin a sequence: drawing any row would nearly always fail
        self._strategy: Uniform | PriorityTree = (
            PriorityTree(prioritized, lanes, self._read_plan) if prioritized else Uniform(self._read_plan)
        )
        self._strategy.prepare(self._read_plan.memory())  # now instead of in the first sample
        if self._relabelling is not None:
            self._relabelling.draw(self._read_plan.memory(), self._all_rows, 0)

    @one_thread
    def can_sample(self) -> bool:
        """Whether `sample` would return a batch now: the replay holds enough transitions, and one can be drawn."""
        able = self._able()
        if self._is_limited():
            return False
        if not able:
            self._starve()
        return able

    @one_thread
    def sample(self, timeout: float | None = None) -> Batch:
        """Draws a batch.

        Args:
            timeout: seconds to wait for data; None does not wait.

        Raises:
            NotEnoughData: without a timeout, the replay holds fewer than min_size transitions, or no whole one.
            TimeoutError: the same, after the timeout.
            ValueError: an actor stored a priority that is negative or infinite, or the timeout is out of range.
            MarlcoreError: writers overwrote every draw for 10 seconds.
            ClosedError: the replay was closed. UsedByTwoThreads: another thread is inside a method of this sampler.
        """
        deadline = deadline_of(timeout)
        memory = self._read_plan.memory()
        self._wait_for_limiter(deadline)
        self._fill(memory, self._all_rows, deadline)
        self._finish(memory, self._all_rows)
        batch = memory.batch()
        if self._relabelling is not None:
            batch.relabelled = self._relabelling.finish(memory)
        return batch

    @property
    def due(self) -> bool:
        """Whether samplers are a batch behind, by the replay's limiter; False without a limiter."""
        return self._gate is not None and self._gate.due

    def limit_to(self, share: Share) -> None:
        """From now on draws only a share of the limiter's samples per insert: a row counts as 1 / share rows.

        Args:
            share: above 0 and at most 1. If it changes, a function of the transitions inserted from now on (negative:
                before now), in the thread that samples. Each insert then makes so many samples due as its share says,
                however late they are drawn; the function is called once for each insert, and for each sample.

        Raises ValueError: there is no limiter, or the share is out of range, or so small that both sides would wait;
            what a function returns is checked when sampling.
        """
        if self._gate is None:
            raise ValueError("limit_to: expected a replay with a limiter, got one without")
        self._gate.limit_to(share)

    @one_thread
    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        """Gives drawn transitions or sequences new priorities, usually their prediction errors.

        Rows overwritten meanwhile, or never drawn by this sampler, are ignored and counted in `stats.ignored`.

        Args:
            index: integers (n,), from `batch.index`.
            priority: (n,), at least 0, finite to the power of alpha too; of two for one index, the later counts.
                Tensors may be on any device, and may require gradients.

        Raises:
            ValueError: a priority is NaN, infinite or negative (the error names the row), or there is not one for each
                index; nothing was changed. TypeError: the sampler draws uniformly. ClosedError: the replay was closed.
        """
        if self.prioritized is None or isinstance(self._strategy, Uniform):
            raise TypeError(
                "update_priorities: expected a sampler with prioritized=Prioritized(...), got a uniform one"
            )
        self._check_open()
        self.stats.ignored += self._strategy.update(index, priority)

    @one_thread
    def clear(self) -> None:
        """From now on draws only transitions that are written later, and waits until there are min_size of them.

        Other samplers are not concerned, and nothing is erased. No draw reaches back across this point either: a stack
        at the first later transition would, so such transitions are not drawn.
        """
        self._check_open()
        self._read_plan.read_windows()
        self._read_plan.set_floor(self._read_plan.windows[HI])
        self._cleared_at = self._view.native.inserted()
        self._enough = False

    @one_thread
    def state_dict(self) -> dict[str, NDArray[Any]]:
        """The generator and the priorities as arrays, for `load_state_dict` or `ReplayBuffer.save`."""
        state = {"generator": self._read_plan.generator.copy()} | self._strategy.state_dict()
        if self._read_plan.has_floor:
            state |= {"floor": self._read_plan.floor.copy(), "cleared_at": np.array(self._cleared_at)}
        return state

    @one_thread
    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Restores the state of a sampler with the same options of the same replay, or of a save of it.

        Raises ValueError: a part is missing, invalid, or of another shape, dtype or sampler; TypeError: the state is
        not a dict. Nothing was changed.
        """
        generator = state_array(state, "generator", (4,), np.uint64)
        if not generator.any():
            raise ValueError("state: expected generator as uint64 (4,), not all zero")
        floor, cleared_at = np.zeros_like(self._read_plan.floor), 0
        if "floor" in state:
            floor = state_array(state, "floor", floor.shape, np.int64)
            cleared_at = int(state_array(state, "cleared_at", (), np.int64))
            self._read_plan.read_windows()
            if not ((floor >= 0) & (floor <= self._read_plan.windows[HI])).all() or cleared_at < 0:
                raise ValueError("state: expected floor as tickets of this replay, got others")
        self._strategy.load_state_dict(state)
        self._read_plan.generator[:] = generator
        self._read_plan.set_floor(floor)
        self._cleared_at, self._enough = cleared_at, False

    def _check_open(self) -> None:
        self._view.segment.check_open()

    def _able(self) -> bool:
        self._check_open()
        return self._has_enough() and self._strategy.can_draw()

    def _starve(self) -> None:
        if self._gate is not None:
            self._gate.starve()

    def _is_limited(self) -> bool:
        return self._gate is not None and not self._gate.may_sample()

    def _wait_for_limiter(self, deadline: float | None) -> None:
        if self._gate is not None:
            self._check_open()
            self.stats.waited += self._gate.wait(deadline)

    def _fill(self, memory: BatchMemory, rows: NDArray[np.int64], deadline: float | None) -> None:
        """Draws the given rows of a batch regardless of the limiter; `_finish` counts them."""
        self._check_open()
        if not self._enough and not self._has_enough():
            self._wait(self._missing, deadline)
        lapped_since = None
        while len(rows):
            filled, refused = self._strategy.draw(memory, rows)
            self.stats.redrawn += refused
            if filled == 0:
                self._wait(partial(self._none_drawn, memory, rows[:1]), deadline)
                continue
            if self._relabelling is not None:
                self._relabelling.draw(memory, rows, filled)
            lapped = self._read_plan.lapped(filled)
            if filled == len(rows) and not len(lapped):
                break
            self.stats.lapped += len(lapped)
            self.stats.redrawn += len(lapped)
            rows = np.concatenate([rows[lapped], rows[filled:]])
            lapped_since = lapped_since or time.monotonic()
            if time.monotonic() - lapped_since > LAP_LIMIT_S:
                raise MarlcoreError(f"{self._view.segment.path}: writers overwrote every draw; use a larger capacity")

    def _finish(self, memory: BatchMemory, rows: NDArray[np.int64], counted: bool = True) -> None:
        """Ends a batch: weighs the rows drawn here, and advances beta; `counted`: tells the limiter of them."""
        self.stats.drawn += len(rows)
        if self._gate is not None and counted:
            self._gate.count(len(rows))
        self._strategy.weigh(memory, rows)

    def _has_enough(self) -> bool:
        self._enough = self._missing() == 0
        return self._enough

    def _missing(self) -> int:
        geometry, floor = self._view.geometry, self._read_plan.floor.tolist()
        # Full lanes never hold more, and some of their rows may be boundary rows.
        committed = map(self._view.native.committed, range(geometry.lanes))
        room = sum(max(0, geometry.capacity - (count - low)) for count, low in zip(committed, floor, strict=True))
        return min(room, max(0, self._least - self._held))

    @property
    def _held(self) -> int:
        held = self._view.native.all_transitions()
        return min(held, self._view.native.inserted() - self._cleared_at) if self._read_plan.has_floor else held

    def _none_drawn(self, memory: BatchMemory, rows: NDArray[np.int64]) -> int:
        filled, refused = self._strategy.draw(memory, rows)
        self.stats.redrawn += refused
        return int(filled == 0)

    def _wait(self, missing: Callable[[], int], deadline: float | None) -> None:
        """Sleeps until `missing` is 0, woken by writers; without a deadline, only checks once more."""
        if self._alone:
            self._starve()
        began = time.monotonic()
        until = began if deadline is None else deadline
        enough = sleep_until(missing, self._read_plan.event, until, self._check_open)
        self.stats.waited += time.monotonic() - began
        if not enough:
            error = NotEnoughData if deadline is None else TimedOut
            raise error(f"{self._view.segment.path}: {self._shortage()}")

    def _shortage(self) -> str:
        held = self._held
        if held < self._least:
            return f"expected at least {self._least} transitions, got {held}"
        if self._strategy.all_zero:
            return f"each of the {held} transitions has a priority of 0, and epsilon is 0"
        if self._window.length is not None:
            return f"none of the {held} transitions begins a sequence of {self._window.length} that is held whole"
        return f"none of the {held} transitions has its stack and its next {self._window.n_step} steps held whole"

    def __repr__(self) -> str:
        return f"<Sampler of {self._view.segment.path} batch_size={self._batch_size}>"

    def __reduce__(self) -> Any:
        raise TypeError("a Sampler belongs to one process: pass the replay and call its `sampler` there")
