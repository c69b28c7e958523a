"""The source of a sampler's rows: it chooses them, copies them, validates the copies, and draws lapped rows again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import NoneType
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import state_array
from ..declared import Whole, check_declared
from ..errors import MarlcoreError, NotEnoughData, TimedOut
from ..kernels import uniform as kernels
from ..kernels.rows import HI
from ..memory import sleep_until
from ..spec import Sequence
from ..transitions import LAP_LIMIT_S, BatchMemory, Drawing, LaneView, Window
from .limiter import SampleGate
from .prioritized import Prioritized, PriorityTree

EQUAL = Prioritized(alpha=0.0)


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


@dataclass(frozen=True)
class SamplerOptions:
    """A sampler's options; see `ReplayBuffer.sampler`."""

    batch_size: Annotated[int, Whole(1)]
    stack: int
    n_step: int
    gamma: float
    seed: Annotated[int | None, Whole(0)]
    pad: str
    min_size: Annotated[int | None, Whole(1)]
    prioritized: Prioritized | None
    sequence: Sequence | None

    @cached_property
    def window(self) -> Window:
        """The rows read around a ticket."""
        window, sequence = Window(self.stack, self.n_step, self.gamma, self.pad), self.sequence
        if sequence is None:
            return window
        period = sequence.period or sequence.length - sequence.burn_in
        return replace(window, length=sequence.length, burn_in=sequence.burn_in, period=period)

    def check(self, lanes: LaneView) -> None:
        """Raises ValueError or TypeError: names the field, the expected value and the actual one."""
        for name, kind in (("prioritized", Prioritized), ("sequence", Sequence)):
            if not isinstance(getattr(self, name), (kind, NoneType)):
                raise TypeError(f"{name}: expected a {kind.__name__} or None, got {getattr(self, name)!r}")
        check_declared(self)
        self.window.check(lanes.spec, lanes.geometry.capacity)
        self.window.check_periods(lanes.spec, lanes.geometry.capacity)
        if self.prioritized is not None:
            self.prioritized.check(lanes.spec)


class Uniform:
    """The strategy without priorities: all transitions or sequences that can be drawn are equally likely."""

    all_zero = False  # if no row can be drawn, whether only priorities of 0 prevent it

    def __init__(self, drawing: Drawing) -> None:
        self._drawing = drawing

    def prepare(self, memory: BatchMemory) -> None:
        """Compiles or loads the kernels without drawing."""
        d = self._drawing
        kernels.draw(d.plan, d.columns, memory.address, np.empty(0, np.int64))
        self.can_draw()

    def can_draw(self) -> bool:
        """Whether any row can be drawn; the call changes no draw, past or future."""
        self._drawing.read_windows()
        return bool(kernels.any_sampleable(self._drawing.plan))

    def draw(self, memory: BatchMemory, rows: NDArray[np.int64]) -> tuple[int, int]:
        """Chooses and copies transitions for output rows, slot i for rows[i]: (slots filled, draws refused).

        It fills no slot if no row can be drawn.
        """
        d = self._drawing
        d.read_windows()
        filled, refused = kernels.draw(d.plan, d.columns, memory.address, rows)
        return filled or self.draw_listed(memory, rows), refused

    def draw_listed(self, memory: BatchMemory, rows: NDArray[np.int64]) -> int:
        """`draw` if nearly every draw is refused: first lists the tickets that can be drawn."""
        d = self._drawing
        tickets = np.empty((2, int(np.sum(d.windows[1] - d.windows[0]))), np.int64)
        listed = kernels.list_sampleable(d.plan, tickets)
        return int(kernels.draw_listed(d.plan, d.columns, memory.address, rows, tickets, listed)) if listed else 0

    def weigh(self, memory: BatchMemory, rows: NDArray[np.int64]) -> None:
        """The kernels wrote weights of 1."""

    def state_dict(self) -> dict[str, NDArray[Any]]:
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        """There is no state to restore."""


class RowSource:
    """Draws rows of one replay into the memory of a batch, for a sampler or for a part of a mixture.

    Its methods raise what `Sampler.sample` raises. If it is not `alone`, because a mixture has several sources of this
    replay, writers keep to the limiter until the mixture calls `starve`.
    """

    def __init__(self, lanes: LaneView, options: SamplerOptions, alone: bool = True) -> None:
        options.check(lanes)
        self.batch_size, self.prioritized = options.batch_size, options.prioritized
        self.path = lanes.segment.path
        self.stats = SamplerStats()
        self.gate = SampleGate.of(lanes, self.batch_size)
        self._alone = alone
        self._view = lanes
        self._window, self._least = options.window, options.min_size or self.batch_size
        self._drawing = Drawing(lanes, options.window, self.batch_size)
        prioritized = self.prioritized
        if prioritized is None and options.window.period > 1:
            prioritized = EQUAL  # few rows begin a sequence: drawing any row would nearly always fail
        self.strategy: Uniform | PriorityTree = (
            PriorityTree(prioritized, lanes, self._drawing) if prioritized else Uniform(self._drawing)
        )
        self._enough = False
        self._cleared_at = 0  # the transitions inserted before
        self._drawing.generator[:] = np.random.SeedSequence(options.seed).generate_state(4, np.uint64)
        self.strategy.prepare(self.memory())  # now instead of in the first sample

    def check_open(self) -> None:
        """Raises ClosedError, StaleHandle: the replay is not open."""
        self._view.segment.check_open()

    def memory(self) -> BatchMemory:
        """Memory for a batch: that of a batch which its user has released, if there is one."""
        return self._drawing.memory()

    def able(self) -> bool:
        """Whether there are enough rows, and one can be drawn."""
        self.check_open()
        return self._has_enough() and self.strategy.can_draw()

    def can_sample(self) -> bool:
        """Whether a batch can be drawn now."""
        able = self.able()
        if self.is_limited():
            return False
        if not able:
            self.starve()
        return able

    @property
    def due(self) -> bool | None:
        """Whether a batch is due by the limiter; None without one."""
        return None if self.gate is None else self.gate.due

    def starve(self) -> None:
        """Tells the limiter that too few rows can be drawn, until `finish`."""
        if self.gate is not None:
            self.gate.starve()

    def is_limited(self) -> bool:
        """Whether the limiter forbids drawing a batch now."""
        return self.gate is not None and not self.gate.may_sample()

    def wait_for_limiter(self, deadline: float | None) -> None:
        """Waits while `is_limited`, until `deadline` of time.monotonic()."""
        if self.gate is not None:
            self.check_open()
            self.stats.waited += self.gate.wait(deadline)

    def fill(self, memory: BatchMemory, rows: NDArray[np.int64], deadline: float | None) -> None:
        """Draws the given rows of a batch regardless of the limiter; `finish` counts them."""
        self.check_open()
        if not self._enough and not self._has_enough():
            self._wait(self._missing, deadline)
        lapped_since = None
        while len(rows):
            filled, refused = self.strategy.draw(memory, rows)
            self.stats.redrawn += refused
            if filled == 0:
                self._wait(partial(self._none_drawn, memory, rows[:1]), deadline)
                continue
            lapped = self._drawing.lapped(filled)
            if filled == len(rows) and not len(lapped):
                break
            self.stats.lapped += len(lapped)
            self.stats.redrawn += len(lapped)
            rows = np.concatenate([rows[lapped], rows[filled:]])
            lapped_since = lapped_since or time.monotonic()
            if time.monotonic() - lapped_since > LAP_LIMIT_S:
                raise MarlcoreError(f"{self.path}: writers overwrote every draw; use a larger capacity")

    def finish(self, memory: BatchMemory, rows: NDArray[np.int64]) -> None:
        """Ends a batch: weighs and counts the rows, perhaps zero, that were drawn here, and advances beta."""
        self.stats.drawn += len(rows)
        if self.gate is not None and (len(rows) or not self._alone):
            self.gate.count(len(rows))
        self.strategy.weigh(memory, rows)

    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        if self.prioritized is None or isinstance(self.strategy, Uniform):
            raise TypeError(
                "update_priorities: expected a sampler with prioritized=Prioritized(...), got a uniform one"
            )
        self.check_open()
        self.stats.ignored += self.strategy.update(index, priority)

    def clear(self) -> None:
        self.check_open()
        self._drawing.read_windows()
        self._drawing.set_floor(self._drawing.windows[HI])
        self._cleared_at = self._view.native.inserted()
        self._enough = False

    def state_dict(self) -> dict[str, NDArray[Any]]:
        state = {"generator": self._drawing.generator.copy()} | self.strategy.state_dict()
        if self._drawing.has_floor:
            state |= {"floor": self._drawing.floor.copy(), "cleared_at": np.array(self._cleared_at)}
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        generator = state_array(state, "generator", (4,), np.uint64)
        if not generator.any():
            raise ValueError("state: expected generator as uint64 (4,), not all zero")
        floor, cleared_at = np.zeros_like(self._drawing.floor), 0
        if "floor" in state:
            floor = state_array(state, "floor", floor.shape, np.int64)
            cleared_at = int(state_array(state, "cleared_at", (), np.int64))
            self._drawing.read_windows()
            if not ((floor >= 0) & (floor <= self._drawing.windows[HI])).all() or cleared_at < 0:
                raise ValueError("state: expected floor as tickets of this replay, got others")
        self.strategy.load_state_dict(state)
        self._drawing.generator[:] = generator
        self._drawing.set_floor(floor)
        self._cleared_at, self._enough = cleared_at, False

    def _has_enough(self) -> bool:
        self._enough = self._missing() == 0
        return self._enough

    def _missing(self) -> int:
        """Transitions still to be written before the replay holds enough."""
        geometry, floor = self._view.geometry, self._drawing.floor.tolist()
        # Full lanes never hold more, and some of their rows may be boundary rows.
        committed = map(self._view.native.committed, range(geometry.lanes))
        room = sum(max(0, geometry.capacity - (count - low)) for count, low in zip(committed, floor, strict=True))
        return min(room, max(0, self._least - self._held))

    @property
    def _held(self) -> int:
        """Transitions that the replay holds since `clear`."""
        held = self._view.native.all_transitions()
        return min(held, self._view.native.inserted() - self._cleared_at) if self._drawing.has_floor else held

    def _none_drawn(self, memory: BatchMemory, rows: NDArray[np.int64]) -> int:
        filled, refused = self.strategy.draw(memory, rows)
        self.stats.redrawn += refused
        return int(filled == 0)

    def _wait(self, missing: Callable[[], int], deadline: float | None) -> None:
        """Sleeps until `missing` is 0, woken by writers; without a deadline, only checks once more."""
        if self._alone:
            self.starve()
        began = time.monotonic()
        until = began if deadline is None else deadline
        enough = sleep_until(missing, self._drawing.event, until, self.check_open)
        self.stats.waited += time.monotonic() - began
        if not enough:
            error = NotEnoughData if deadline is None else TimedOut
            raise error(f"{self.path}: {self._shortage()}")

    def _shortage(self) -> str:
        held = self._held
        if held < self._least:
            return f"expected at least {self._least} transitions, got {held}"
        if self.strategy.all_zero:
            return f"each of the {held} transitions has a priority of 0, and epsilon is 0"
        if self._window.length is not None:
            return f"none of the {held} transitions begins a sequence of {self._window.length} that is held whole"
        return f"none of the {held} transitions has its stack and its next {self._window.n_step} steps held whole"
