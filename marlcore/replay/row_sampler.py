"""Draws the rows of batches from one replay: chooses, copies and validates them, and replaces overwritten ones."""

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import brief, check_type, check_whole, state_array
from ..errors import MarlcoreError
from ..kernels import uniform
from ..kernels.rows import HI, LO, WHOLE
from ..transitions import LAP_LIMIT_S, Batch, BatchMemory, LaneView, ReadPlan, Window, count_transitions
from .hindsight import Hindsight, Relabelling
from .prioritized import EQUAL, Prioritized, PriorityTree

Ints = NDArray[np.int64]

_NO_ROWS = np.empty(0, np.int64)


@dataclass(slots=True)
class SamplerStats:
    """A sampler's counters.

    Attributes:
        drawn: rows returned.
        lapped: rows that a writer overwrote while they were copied.
        redrawn: repeated draws, because a row was lapped or cannot be drawn (see Sampler).
        waited: seconds slept for data.
        ignored: priorities for rows that were overwritten meanwhile, or never drawn.
    """

    drawn: int = 0
    lapped: int = 0
    redrawn: int = 0
    waited: float = 0.0
    ignored: int = 0


class RowSampler:
    """Draws the rows of batches from lanes without waiting. A `Sampler` has one RowSampler, a `Mixture` several.

    `Sampler` documents the methods that it shares with this class.

    Attributes:
        stats: rows drawn, lapped and drawn again.
        prioritized: the options of prioritized drawing; None for uniform drawing.
        batch: the function that makes a `Batch` of a block of memory, after its rows were drawn and checked.
    """

    def __init__(
        self,
        view: LaneView,
        window: Window,
        batch_size: int,
        min_size: int | None,
        prioritized: Prioritized | None,
        seed: int | None,
        hindsight: Hindsight | None,
        replace: bool = True,
    ) -> None:
        check_whole("batch_size", batch_size)
        if min_size is not None:
            check_whole("min_size", min_size)
        if seed is not None:
            check_whole("seed", seed, 0)
        window.check(view.spec, view.geometry.capacity)
        window.check_periods(view.spec, view.geometry.capacity)
        check_type("prioritized", prioritized, Prioritized, or_none=True)
        if prioritized is not None:
            prioritized.check(view.spec)
        check_type("hindsight", hindsight, Hindsight, or_none=True)
        check_type("replace", replace, bool)
        if prioritized is not None and not replace:
            raise ValueError("replace: expected True for priorities, which decide how often a row comes, got False")
        self.stats = SamplerStats()
        self.prioritized = prioritized
        self.batch_size, self._min_size = int(batch_size), None if min_size is None else int(min_size)
        self._least = self._min_size or self.batch_size
        self._view, self._window, self.path = view, window, view.segment.path
        self._replace = replace
        self._enough = False  # whether there were min_size transitions at the last look
        self._plan = plan = ReadPlan(view, window, self.batch_size, hindsight is not None, replace)
        self._whole = np.arange(self.batch_size)  # the rows of the next batch
        self.memory, self.event, self.check_open = plan.memory, plan.event, view.segment.check_open
        plan.generator[:] = _state_of(seed)
        if prioritized is None and window.period > 1:
            prioritized = EQUAL  # since few rows begin a sequence, nearly all uniformly drawn rows would be refused
        self._tree = None if prioritized is None else PriorityTree(prioritized, view, plan)
        self._strategy = self._tree or _Uniform(plan)
        self._strategy.prepare(plan.memory())  # now instead of in the first draw
        self._cleared = plan.cleared  # at the last draw
        self._relabelling: Relabelling | None = None
        self.batch: Callable[[BatchMemory], Batch] = BatchMemory.batch
        if hindsight is not None:
            self._relabelling = Relabelling(hindsight, view, window, plan)
            self.batch = self._relabelling.batch
            self._relabelling.draw(plan.memory(), self._whole, 0)

    def resize(self, n: int | None = None) -> Ints:
        """Gives the next batch n rows, by default batch_size; returns the numbers of its rows."""
        if n is not None:
            check_whole("n", n)
        if (n := self.batch_size if n is None else int(n)) != len(self._whole):
            self._whole = _NO_ROWS  # if an interrupt or an error ends this block, the next call does all of it anew
            self._plan.resize(n)
            for scratch in (self._tree, self._relabelling):
                if scratch is not None:
                    scratch.resize(n)
            self._least, self._enough = self._min_size or n, False
            self._whole = np.arange(n)
        if not self._replace:
            self.begin()
        return self._whole

    def begin(self) -> None:
        """Lets the next batch have any row, even a row of the last batch."""
        if not self._replace:
            self._plan.begin()

    def reseed(self, number: int) -> None:
        """Replaces the generator's state by a new state that follows from the old state and a number."""
        self._plan.generator[:] = _state_of([*self._plan.generator.tolist(), number])

    def lacking(self) -> int:
        """Returns the least number of transitions to add before a row can be drawn; 0 if a row can be drawn now."""
        self.check_open()
        return self._too_few() or self.least_drawable - self._strategy.drawable(self.least_drawable)

    @property
    def least_drawable(self) -> int:
        """How many drawable rows a batch needs: one, or all its rows if none may come twice."""
        return 1 if self._replace else len(self._whole)

    def ready(self) -> int:
        """Counts the rows that can be drawn now, up to `least_drawable`."""
        self.check_open()
        return 0 if self._too_few() else self._strategy.drawable(self.least_drawable)

    def fill(self, memory: BatchMemory, rows: Ints) -> Ints:
        """Fills these rows of a batch; returns the rows that stay unfilled if the replay has nothing to draw."""
        self.check_open()
        given = rows
        if not self._enough and self._too_few():
            return rows
        lapped_since = None
        while True:
            filled, refused = self._strategy.draw(memory, rows)
            self.stats.redrawn += refused
            if self._start_anew():
                return self.fill(memory, given)
            # Where rows were damaged, priorities may be left although no row can be drawn.
            if filled == 0 and self._strategy.drawable(self.least_drawable) < self.least_drawable:
                return rows
            if self._relabelling is not None:
                self._relabelling.draw(memory, rows, filled)
            lapped = self._plan.lapped(filled)
            if filled == len(rows) and not len(lapped):
                return _NO_ROWS
            self.stats.lapped += len(lapped)
            self.stats.redrawn += len(lapped)
            rows = np.concatenate([rows[lapped], rows[filled:]])
            lapped_since = lapped_since or time.monotonic()
            if time.monotonic() - lapped_since > LAP_LIMIT_S:
                raise MarlcoreError(f"{self.path}: writers overwrote every draw; use a larger capacity")

    def _start_anew(self) -> bool:
        """Forgets all earlier rows if there was a `ReplayBuffer.clear`; returns whether there was."""
        if self._plan.cleared == self._cleared:
            return False
        self._cleared, self._enough = self._plan.cleared, False
        if self._tree is not None:
            self._tree.start_anew()
        self.begin()
        return True

    def finish(self, memory: BatchMemory, rows: Ints, beta: float | None = None) -> None:
        """Counts the rows that this sampler gave to a complete batch, computes their weights, and advances beta."""
        self.stats.drawn += len(rows)
        if self._tree is not None:
            self._tree.weigh(memory, rows, beta)

    def update_priorities(self, index: ArrayLike, priority: ArrayLike) -> None:
        tree = self.by_priority("update_priorities")
        self.check_open()
        self.stats.ignored += tree.update(index, priority)

    def by_priority(self, label: str) -> PriorityTree:
        if self.prioritized is None or self._tree is None:
            raise TypeError(f"{label}: expected a sampler with prioritized=Prioritized(...), got a uniform one")
        return self._tree

    @property
    def limit(self) -> float:
        """The highest priority that an update may give."""
        return sys.float_info.max if self._tree is None else self._tree.limit

    def clear(self) -> None:
        self.check_open()
        self._plan.read_windows()
        self._plan.set_floor(self._plan.windows[HI])
        self._enough = False

    def state_dict(self) -> dict[str, NDArray[Any]]:
        self._plan.read_windows()
        self._start_anew()
        state: dict[str, NDArray[Any]] = {"generator": self._plan.generator.copy()}
        if self._tree is not None:
            state |= self._tree.state_dict()
        if self._plan.has_floor:
            state["floor"] = self._plan.floor.copy()
        return state

    def state_below(self, tickets: Ints) -> dict[str, NDArray[Any]]:
        """Returns a state that depends on no row at or above `tickets`, int64 [lanes of the replay].

        It also leaves out lower rows whose windows reach `tickets`, since other rows may take those later.
        """
        state, first = self.state_dict(), self._view.geometry.first
        tickets = tickets[first : first + self._view.geometry.lanes]
        if self._tree is not None:
            self._tree.forget(state, np.maximum(0, tickets - self._window.least_rows(self._view.spec)))
        if "floor" in state:
            state["floor"] = np.minimum(state["floor"], tickets)
        return state

    def load_state_dict(self, state: Mapping[str, NDArray[Any]]) -> None:
        generator = state_array(state, "generator", (4,), np.uint64)
        if not generator.any():
            raise ValueError("state: expected generator as uint64 (4,), not all zero")
        floor = np.zeros_like(self._plan.floor)
        if "floor" in state:
            floor = state_array(state, "floor", floor.shape, np.int64)
            self._plan.read_windows()
            if not ((floor >= 0) & (floor <= self._plan.windows[HI])).all():
                raise ValueError(f"state: expected floor as tickets of this replay, got {brief(floor.tolist())}")
        if self._tree is not None:
            self._tree.load_state_dict(state)
        self._plan.generator[:] = generator
        self._plan.set_floor(floor)
        self._plan.read_windows()
        self._cleared, self._enough = self._plan.cleared, False

    def shortage(self) -> str:
        """Returns the reason why no row can be drawn, beginning with the replay's path."""
        count, window = self._held, self._window
        if count < self._least:
            why = f"expected at least {self._least} transitions, got {count}"
        elif self._tree is not None and self._tree.all_zero:
            why = f"each of the {count} transitions has a priority of 0, and epsilon is 0"
        elif not self._replace:
            rows = "transitions" if window.length is None else "sequences"
            why = f"expected {len(self._whole)} different {rows}, got fewer among the {count} transitions"
        elif window.length is not None and window.burn_in == WHOLE:
            why = f"none of the {count} transitions begins an episode of at most {window.length} that is held whole"
        elif window.length is not None:
            why = f"none of the {count} transitions begins a sequence of {window.length} that is held whole"
        else:
            why = f"none of the {count} transitions has its stack and its next {window.n_step} steps held whole"
        return f"{self.path}: {why}"

    def _too_few(self) -> int:
        """Returns how many more transitions `min_size` needs, at most as many as the lanes have room for."""
        geometry, native = self._view.geometry, self._view.native
        floor: list[int] = np.maximum(self._plan.floor, native.cleared()[1]).tolist()
        # Full lanes never hold more, and some of their rows may be boundary rows.
        committed = map(native.committed, range(geometry.lanes))
        room = sum(max(0, geometry.capacity - (count - low)) for count, low in zip(committed, floor, strict=True))
        missing = min(room, max(0, self._least - self._held))
        self._enough = missing == 0
        return missing

    @property
    def _held(self) -> int:
        """Counts the transitions that the lanes hold, without those written before a clear."""
        plan, view = self._plan, self._view
        if not plan.has_floor and not view.native.cleared()[0]:
            return view.native.all_transitions()
        return count_transitions(view, plan.windows[LO], plan.windows[HI], plan.read_windows)


def _state_of(seed: int | list[int] | None) -> NDArray[Any]:
    return np.random.SeedSequence(seed).generate_state(4, np.uint64)


class _Uniform:
    """Chooses rows without priorities: each transition or sequence that can be drawn is equally likely."""

    def __init__(self, read_plan: ReadPlan) -> None:
        self._read_plan = read_plan
        self._tickets = np.zeros((2, 1), np.int64)

    def prepare(self, memory: BatchMemory) -> None:
        """Compiles or loads the kernels without drawing."""
        uniform.draw(self._read_plan.plan, self._read_plan.columns, memory.address, _NO_ROWS)
        self.drawable(1)

    def drawable(self, most: int) -> int:
        """Counts the rows that can be drawn now, up to `most`; the call does not affect later draws."""
        if self._tickets.shape[1] != most:
            self._tickets = np.zeros((2, most), np.int64)
        self._read_plan.read_windows()
        return int(uniform.list_sampleable(self._read_plan.plan, self._tickets))

    def draw(self, memory: BatchMemory, rows: Ints) -> tuple[int, int]:
        """Draws transitions into the output rows rows[0], rows[1], ...; returns (rows filled, draws refused).

        If nothing can be drawn, no row is filled.
        """
        d = self._read_plan
        d.read_windows()
        filled, refused = uniform.draw(d.plan, d.columns, memory.address, rows)
        return filled or self._draw_listed(memory, rows), refused

    def _draw_listed(self, memory: BatchMemory, rows: Ints) -> int:
        """Draws from a list of all drawable tickets, when random draws found none; returns how many rows it filled."""
        d = self._read_plan
        tickets = np.empty((2, int(np.sum(d.windows[1] - d.windows[0]))), np.int64)
        listed = uniform.list_sampleable(d.plan, tickets)
        return int(uniform.draw_listed(d.plan, d.columns, memory.address, rows, tickets, listed)) if listed else 0
