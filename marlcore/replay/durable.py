"""Durable replays: rows that survive the end of every process, and of the machine up to a watermark."""

import logging
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Annotated

import numpy as np

from ..closing import ClosedAfterError, Closing
from ..declared import Declared, Number
from ..kernels.rows import POLICY_VERSION
from ..memory import BOUNDARY, Flusher, Flushing, Marks, sync_directory, take_flushing
from ..transitions import LaneView

log = logging.getLogger(__name__)

_OF, _STATE = "@", ".sampler"  # the former is in no sampler's name
_COUNT = 2**32 - 1
_FLAGS = 56  # of a row's first word, see struct mc_row


@dataclass(frozen=True)
class Durable(Declared):
    """How a replay in a file survives the end of the machine.

    Attributes:
        every_s: seconds between two watermarks, above 0 and at most a day: a power cut loses the rows of at most so
            long, and of the time that the disk takes to write them.
    """

    every_s: Annotated[float, Number(above=0, high=86_400)] = 2.0


class Durability(Closing):
    """What makes one replay durable in this process; the first process that opens the replay is its flusher.

    Attributes:
        recovered: what was left when the machine stopped, if this process was the first to open the replay since.
    """

    def __init__(self, view: LaneView, options: Durable) -> None:
        segment, geometry = view.segment, view.geometry
        self.options, self.path = options, Path(segment.path)
        self.marks = Marks(self.path, segment.body, geometry)
        held, self.recovered = take_flushing(segment, geometry, self.marks, hollow)
        if self.recovered is not None:
            rows, cut, overwritten = self.recovered.rows, self.recovered.cut, self.recovered.overwritten
            left = f"{rows:,} rows are whole, {cut:,} newer and {overwritten:,} older ones are lost"
            log.warning("%s: the machine stopped while the replay was in use: %s", self.path, left)
        self._flushing: Flushing | None = None
        self._flusher: Flusher | None = None
        view.native.withhold(self.marks.words_offset)
        if held is not None:
            with ClosedAfterError(held):
                self._flushing = Flushing(segment, view.native, geometry, self.marks, held)
                self._flusher = Flusher(self._flushing, options.every_s)

    def begin(self) -> None:
        """Puts a new replay and its name on disk. Raises OSError."""
        if self._flushing is not None:
            self._flushing.flush()
            sync_directory(self.path.parent)

    def state_path(self, name: str) -> Path:
        """Returns the file of the sampler of this name."""
        return self.path.with_name(f"{self.path.name}{_OF}{name}{_STATE}")

    def unlink(self) -> None:
        """Removes the samplers' files."""
        for file in self.path.parent.glob(f"{escape(self.path.name)}{_OF}*{_STATE}"):
            # Otherwise it belongs to a replay of a longer name.
            if file.name.count(_OF) == self.path.name.count(_OF) + 1:
                file.unlink(missing_ok=True)

    def close(self) -> None:
        """Puts the rows on disk once more, and lets another process be the flusher. Raises the flusher's error."""
        if self._flusher is not None:
            flusher, self._flusher = self._flusher, None
            flusher.close()


def newest_version(view: LaneView) -> int:
    """Returns the highest `policy_version` of the lanes' newest rows, 0 without rows; a lane's versions only grow."""
    newest = (view.native.record(lane, view.native.committed(lane) - 1) for lane in range(view.geometry.lanes))
    return max((int(record.view(np.uint32)[POLICY_VERSION]) for record in newest if record is not None), default=0)


def hollow(word: int) -> int:
    """Turns the first word of a row into that of a boundary row that follows it."""
    ordinal, is_boundary = word & _COUNT, word >> _FLAGS & BOUNDARY
    return (ordinal + (not is_boundary)) & _COUNT | BOUNDARY << _FLAGS
