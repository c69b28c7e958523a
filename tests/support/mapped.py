"""The memory of a replay, queue, store or telemetry, mapped once more: what other processes see, and may damage."""

from typing import Any

import numpy as np

from marlcore import ReplayBuffer, TrajectoryQueue
from marlcore.memory import LaneGeometry, NativeLanes, Segment
from marlcore.replay.rate_limiter import SLOTS
from marlcore.transitions import RecordLayout


class Mapped:
    """A second mapping of a segment: uint8 `body`, and the places of its counters, lanes, slots and columns."""

    def __init__(self, shared: Any) -> None:
        self.segment = Segment.attach(shared.handle)
        self.body = self.segment.body
        self.geometry = _geometry_of(shared)

    @property
    def lanes(self) -> NativeLanes:
        return self.geometry.bind(self.body)

    def committed(self, lane: int = 0) -> int:
        """Rows ever written to a lane: the next ticket."""
        return int(self.counters(lane)[0])

    def counters(self, lane: int = 0) -> np.ndarray:
        """Committed and reserved of a lane, int64 [2]; what is stored here is seen by all."""
        return self.words(self.geometry.counters_offset(lane))[:2]

    def words(self, offset: int) -> np.ndarray:
        return self.body[offset : offset + 128].view(np.int64)

    def column(self, column: int, lane: int = 0) -> np.ndarray:
        """The rows of a lane in a column, uint8 [rows, stride]."""
        rows, stride = self.geometry.rows(column), self.geometry.stride(column)
        start = self.geometry.column_offset(column) + lane * rows * stride
        return self.body[start : start + rows * stride].reshape(rows, stride)

    @property
    def sampled(self) -> int:
        """Rows that all samplers of a replay with a limiter ever drew."""
        return sum(int(self.words(self.geometry.slot_offset(slot))[0]) for slot in range(SLOTS))


def _geometry_of(shared: Any) -> LaneGeometry:
    if not isinstance(shared, (ReplayBuffer, TrajectoryQueue)):
        return LaneGeometry(1, 1, (8,))
    slots = 1 + shared.lanes if isinstance(shared, TrajectoryQueue) else SLOTS * (shared.limiter is not None)
    layout = RecordLayout.of(shared.spec)
    return LaneGeometry(shared.lanes, shared.capacity // shared.lanes, layout.columns, layout.every, slots)
