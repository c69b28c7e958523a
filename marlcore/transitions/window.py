"""What every reader of transitions needs: windows of the lanes, memory for batches, and the check after copying."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..kernels import rows
from ..memory import Event, LaneGeometry, NativeLanes, Segment
from ..spec import TransitionSpec
from .batch import BatchLayout, BatchMemory
from .layout import RecordLayout

__all__ = ["Drawing", "Lanes", "Window"]


@dataclass(frozen=True)
class Lanes:
    """A replay's lanes as this process has them mapped."""

    segment: Segment
    native: NativeLanes
    geometry: LaneGeometry
    layout: RecordLayout
    spec: TransitionSpec

    @property
    def transitions(self) -> int:
        """Transitions held, boundary rows not counted."""
        return self.native.all_transitions()


@dataclass(frozen=True)
class Window:
    """What is read around a ticket: see `ReplayBuffer.sampler` and `Sequence`."""

    stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    pad: str = "repeat"
    length: int | None = None
    burn_in: int = 0
    period: int = 1

    def check(self, spec: TransitionSpec, lane_rows: int) -> None:
        """Raises ValueError: a field, what was expected and what came."""
        for name in ("stack", "n_step"):
            check_count(name, getattr(self, name))
        if not isinstance(self.gamma, (int, float, np.number)) or not 0.0 <= self.gamma <= 1.0:
            raise ValueError(f"gamma: expected a number from 0 to 1, got {self.gamma!r}")
        if self.pad not in ("repeat", "zero"):
            raise ValueError(f"pad: expected 'repeat' or 'zero', got {self.pad!r}")
        if spec.next_obs and (self.stack > 1 or self.n_step > 1):
            raise ValueError(
                "stack, n_step: expected 1 and 1, since rows of a spec with next_obs do not follow one another, "
                f"got {self.stack} and {self.n_step}"
            )
        if spec.next_obs and self.length is not None:
            raise ValueError("sequence: expected None, since rows of a spec with next_obs do not follow one another")
        read = [self.stack, self.n_step] if self.length is None else [self.stack, self.n_step, self.length - 1]
        if not spec.next_obs and sum(read) > lane_rows:
            names = "stack + n_step" if self.length is None else "stack + n_step + sequence.length - 1"
            got = " + ".join(map(str, read))
            raise ValueError(f"{names}: expected at most the {lane_rows} rows of a lane, got {got}")
        if self.length is not None and self.period % spec.state_every:
            raise ValueError(
                f"sequence.period: expected a multiple of the {spec.state_every} rows from one stored state to "
                f"the next, got {self.period}"
            )

    def check_periods(self, spec: TransitionSpec, lane_rows: int) -> None:
        """Raises ValueError: of windows that begin once in a period, a lane does not always hold one whole."""
        if self.length is None:
            return
        least = max(self.stack, spec.state_every) + self.n_step + self.length - 1 + self.period - 1
        if least > lane_rows:
            raise ValueError(
                f"sequence: expected a lane of at least {least} rows, of which it always holds a whole window of "
                f"{self.length} that begins once in {self.period} rows, got {lane_rows}"
            )


def check_count(name: str, value: object, low: int = 1) -> None:
    """Raises ValueError unless value is an integer of at least `low`."""
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < low:
        raise ValueError(f"{name}: expected an integer of at least {low}, got {value!r}")


class Drawing:
    """The arrays that the kernels work on, for batches of one size and kind of window.

    Attributes:
        table, frames, fields, states, windows, chosen, successors: see kernels/rows.py and kernels/gather.py.
        body: uint8, the segment's bytes.
        event: where writers wake whoever waits for rows.
    """

    def __init__(self, lanes: Lanes, window: Window, batch_size: int) -> None:
        geometry, spec = lanes.geometry, lanes.spec
        self._layout = BatchLayout(spec, lanes.layout, geometry, batch_size, window.stack, window.n_step, window.length)
        self._pool: deque[BatchMemory] = deque(maxlen=_POOL)
        self.body = lanes.segment.body
        self.event = Event(self.body)
        state_every = spec.state_every if window.length is not None else 1
        self.table = np.array(
            [geometry.column_offset(0), geometry.stride(0), geometry.capacity, geometry.lanes,
             window.stack, window.n_step, spec.next_obs, self._layout.length, window.burn_in, window.period,
             window.pad == "repeat", batch_size, state_every, *self._layout.offsets()], np.int64)  # fmt: skip
        self.frames, self.fields, self.states = self._layout.frames, self._layout.fields, self._layout.states
        self.windows = np.zeros((3, geometry.lanes), np.int64)
        self.chosen = np.zeros((6, batch_size), np.int64)
        self.successors = np.zeros(batch_size * self._layout.length, np.int64)
        self.read_windows = lanes.native.windows(self.windows[rows.LO], self.windows[rows.HI])
        self._ok = np.zeros(batch_size, np.uint8)
        self._validate = lanes.native.validator(self.chosen[rows.LANE], self.chosen[rows.LOWEST], self._ok)

    def memory(self) -> BatchMemory:
        """Memory for a batch: of one of the last few that its user has let go of, if there is one.

        What takes the place of the oldest makes that its user's alone: it goes when its user lets go.
        """
        for memory in self._pool:
            if memory.is_free():
                return memory
        memory = BatchMemory(self._layout)
        self._pool.append(memory)
        return memory

    def lapped(self, filled: int) -> NDArray[np.int64]:
        """The output rows, of the first `filled` slots, that writers overwrote before they were copied whole."""
        if not self._validate(filled):
            return _NONE
        lapped: NDArray[np.int64] = self.chosen[rows.ROW, :filled][self._ok[:filled] == 0]
        return lapped


_NONE = np.empty(0, np.int64)
_POOL = 8  # memories that are looked at: more than a learner with a prefetching thread holds at once
