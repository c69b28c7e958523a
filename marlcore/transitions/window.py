"""The code that all readers of transitions share: windows, memory for batches, and the check after copying."""

import math
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from ..checks import check_type
from ..declared import Declared, Number, Whole
from ..kernels import rows
from ..kernels.plan import PLAN
from ..memory import Event, LaneGeometry
from ..observations import Pad
from ..spec import Sequence, TransitionSpec
from .batch import COMPUTED, BatchLayout, BatchMemory
from .layout import LaneView

Layout: TypeAlias = Literal["separate", "shared"]
LONGER_THAN_AGES = 1 << 24  # as a period: windows begin at an episode's first row alone
LAP_LIMIT_S = 10.0  # the longest time for which writers may overwrite every copy before a reader raises


@dataclass(frozen=True)
class Window(Declared):
    """The rows that a sampler or reader reads around a ticket: see `ReplayBuffer.sampler` and `Sequence`."""

    stack: Annotated[int, Whole(1)] = 1
    n_step: Annotated[int, Whole(1)] = 1
    gamma: Annotated[float, Number(0, 1)] = 0.99
    pad: str = "repeat"
    sequence: Sequence | None = None
    layout: str | None = None

    @property
    def separate(self) -> bool:
        """Whether obs and next_obs are separate arrays; by default, only if this copies no frame twice."""
        return self.layout == "separate" or (self.layout is None and self.stack == 1 and self.sequence is None)

    @property
    def length(self) -> int | None:
        return self.sequence.length if self.sequence else None

    @property
    def burn_in(self) -> int:
        if self.whole:
            return rows.WHOLE
        return self.sequence.burn_in if self.sequence else 0

    @property
    def whole(self) -> bool:
        return self.sequence is not None and self.sequence.whole

    @property
    def period(self) -> int:
        if self.whole:
            return LONGER_THAN_AGES
        return self.sequence.period or self.sequence.length - self.sequence.burn_in if self.sequence else 1

    def check(self, spec: TransitionSpec, lane_rows: int) -> None:
        """Raises ValueError or TypeError, which name the field, if lanes of this many rows cannot serve the window."""
        check_type("sequence", self.sequence, Sequence, or_none=True)
        if self.pad not in get_args(Pad):
            raise ValueError(f"pad: expected 'repeat' or 'zero', got {self.pad!r}")
        if self.layout not in (None, *get_args(Layout)):
            raise ValueError(f"layout: expected 'separate', 'shared' or None, got {self.layout!r}")
        if spec.next_obs and (self.stack > 1 or self.n_step > 1):
            why = "since rows of a spec with next_obs do not follow one another"
            raise ValueError(f"stack, n_step: expected 1 and 1, {why}, got {self.stack} and {self.n_step}")
        if spec.next_obs and self.length is not None:
            raise ValueError("sequence: expected None, since rows of a spec with next_obs do not follow one another")
        read = [self.stack, self.n_step] if self.length is None else [self.stack, self.n_step, self.length - 1]
        if not spec.next_obs and sum(read) > lane_rows:
            names = "stack + n_step" if self.length is None else "stack + n_step + sequence.length - 1"
            got = " + ".join(map(str, read))
            raise ValueError(f"{names}: expected at most the {lane_rows} rows of a lane, got {got}")
        if self.length is not None and not self.whole and self.period % spec.state_every:
            interval = f"{spec.state_every} rows from one stored state to the next"
            raise ValueError(f"sequence.period: expected a multiple of the {interval}, got {self.period}")

    def least_rows(self, spec: TransitionSpec) -> int:
        """Returns how many rows a lane needs to hold a whole window at all times; windows begin every `period` rows."""
        if self.length is None:
            return self.stack + self.n_step
        between = 0 if self.whole else self.period - 1
        return max(self.stack, spec.state_every) + self.n_step + self.length - 1 + between

    def check_periods(self, spec: TransitionSpec, lane_rows: int) -> None:
        """Raises ValueError if a lane may at times hold no whole window of a sequence."""
        least = self.least_rows(spec)
        if self.length is not None and not self.whole and least > lane_rows:
            whole = f"a whole window of {self.length} transitions (windows begin every {self.period} rows)"
            expected = f"a lane of at least {least} rows, so that it always holds {whole}"
            raise ValueError(f"sequence: expected {expected}, got {lane_rows}")


class ReadPlan:
    """The kernels' arguments for batches of one window and the last chosen size; see kernels/plan.py and rows.py."""

    def __init__(
        self, lanes: LaneView, window: Window, batch_size: int, reads_more: bool = False, replace: bool = True
    ) -> None:
        """With `reads_more`, the caller reads further rows for each slot, and sets the slots' lowest tickets.

        Without `replace`, no row is drawn twice between two calls of `begin`.
        """
        self.event = Event(lanes.segment.body)  # by which writers wake processes that wait for rows
        self.windows = np.zeros((4, lanes.geometry.lanes), np.int64)  # of each lane; see kernels/plan.py
        self.generator = np.zeros(4, np.uint64)  # the generator's state, for every draw
        self.floor = np.zeros(lanes.geometry.lanes, np.int64)  # the lowest tickets that may be drawn
        self.has_floor, self.cleared = False, 0  # the latter: what `NativeLanes.cleared` returned at the last look
        self._mark = 0  # of the present batch; see kernels/plan.py
        self._drawn = np.zeros(0 if replace else lanes.geometry.lanes * lanes.geometry.capacity, np.uint8)
        self._read_held = lanes.native.windows(self.windows[rows.LO], self.windows[rows.HI])
        self._raise_to_floor = lanes.native.raiser(self.floor, self.windows[rows.LO], self.windows[rows.HI])
        shared: dict[str, Any] = dict(zip(("lo", "hi", "seam", "before"), self.windows, strict=True))
        shared |= {"generator": self.generator, "drawn": self._drawn}
        self._make = partial(_Sized, lanes, window, reads_more, shared)
        self._sizes: dict[int, _Sized] = {}  # of the latest batches, the newest last
        self.resize(batch_size)

    def resize(self, batch_size: int) -> None:
        """Makes the next batches of this size. Raises ValueError if such a batch exceeds the machine's memory."""
        sized = self._sizes.pop(batch_size, None) or self._make(batch_size)
        self._sizes[batch_size] = self._sized = sized
        if len(self._sizes) > _SIZES:
            del self._sizes[next(iter(self._sizes))]
        self.plan, self.columns, self.chosen = sized.plan, sized.columns, sized.chosen

    def begin(self) -> None:
        """Lets the next draws choose any row again."""
        if self._mark == 255:
            self._drawn[:] = 0
        self._mark = self._mark % 255 + 1
        self.plan["mark"] = self._mark

    def read_windows(self) -> None:
        """Fills `windows` with the tickets that may be drawn now. Raises SegmentCorrupt if counters went back."""
        self.cleared = self._read_held()
        if self.has_floor:
            self._raise_to_floor()

    def set_floor(self, tickets: NDArray[np.int64]) -> None:
        """Sets the lowest tickets to draw, int64 [lanes]; they must not exceed the committed tickets."""
        self.floor[:] = tickets
        self.has_floor = bool(tickets.any())

    def memory(self) -> BatchMemory:
        """Returns memory for a batch: that of a recent batch if its user has released it, otherwise new memory."""
        for memory in self._sized.pool:
            if memory.is_free():
                return memory
        memory = BatchMemory(self._sized.layout)
        self._sized.pool.append(memory)
        return memory

    def lapped(self, filled: int) -> NDArray[np.int64]:
        """Returns the slots, among the first `filled`, whose rows writers overwrote before the copy was complete."""
        sized = self._sized
        return np.flatnonzero(sized.ok[:filled] == 0) if sized.validate(filled) else _NONE


class _Sized:
    """The part of a ReadPlan that depends on the batch's size."""

    def __init__(
        self, lanes: LaneView, window: Window, reads_more: bool, shared: dict[str, Any], batch_size: int
    ) -> None:
        """`shared` are arrays that do not depend on the size, by their names in the plan."""
        self.layout = BatchLayout(lanes, batch_size, window.stack, window.n_step, window.length, window.separate)
        self.pool: deque[BatchMemory] = deque(maxlen=_POOL)
        self.chosen = np.zeros((3, batch_size), np.int64)
        self._successors = np.zeros(batch_size * self.layout.length, np.int64)
        self._rows = np.zeros((2, batch_size), np.int64)
        self._body = lanes.segment.body
        self.columns = self.layout.columns
        self.columns["base"] += address_of(self._body)
        self.plan = np.zeros(1, PLAN)
        scratch = ("lane", "ticket", "lowest", "successors", "row", "after")
        arrays = dict(zip(scratch, (*self.chosen, self._successors, *self._rows), strict=True))
        addresses = {name: address_of(array) for name, array in (arrays | shared).items()}
        self._set(window, lanes.spec, lanes.geometry, addresses)
        self.ok = np.zeros(batch_size, np.uint8)
        lowest = self.chosen[rows.TICKET if self.plan["plain"][0] and not reads_more else rows.LOWEST]
        self.validate = lanes.native.validator(self.chosen[rows.LANE], lowest, self.ok)

    def _set(self, window: Window, spec: TransitionSpec, geometry: LaneGeometry, addresses: dict[str, int]) -> None:
        layout, records = self.layout, address_of(self._body) + geometry.column_offset(0)
        settings: dict[str, Any] = {
            "records": records,
            "record_stride": geometry.stride(0),
            "capacity": geometry.capacity,
            "lanes": geometry.lanes,
            "repeat": window.pad == "repeat",
            "stored_next": spec.next_obs,
            "state_every": spec.state_every if window.length is not None else 1,
            "plain": window.stack == window.n_step == 1 and window.length is None and not spec.reward.shape,
            "far": len(geometry.columns) > 1,
            "batch": layout.batch_size,
            "rewards": math.prod(spec.reward.shape),
        }
        settings |= {name: getattr(window, name) for name in ("stack", "n_step", "gamma", "burn_in", "period")}
        settings |= {name: getattr(layout, name) for name in ("length", "frames", "fields", "states")}
        settings |= {name: layout.offset(name) for name in COMPUTED} | addresses
        for name, value in settings.items():
            self.plan[name] = value


def address_of(array: NDArray[Any]) -> int:
    """Returns an array's address; the caller must keep the array alive."""
    return int(array.ctypes.data)


_NONE = np.empty(0, np.int64)
_SIZES = 4  # sizes whose memory is kept
_POOL = 8  # memories kept: more than a learner with a prefetching thread holds at once
