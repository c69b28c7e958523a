"""Durable replays and queues: all rows survive their processes, and rows below a watermark also a power cut."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..closing import ClosedAfterError, Closing
from ..declared import Declared, Number
from ..memory import BOUNDARY, Flusher, Flushing, Kept, Marks, sync_directory, take_flushing
from .layout import LaneView

log = logging.getLogger(__name__)

DURABLE = "durable"  # the key of a description that tells how often the segment is put on disk
_COUNT = 2**32 - 1
_FLAGS = 56  # of a row's first word, see struct mc_row


@dataclass(frozen=True)
class Durable(Declared):
    """How a replay or queue in a file survives the end of the machine.

    Attributes:
        every_s: seconds between two watermarks, above 0 and at most a day: a power cut loses at most the rows of this
            time, and of the time that the disk takes to write them.
    """

    every_s: Annotated[float, Number(above=0, high=86_400)] = 2.0


class Durability(Closing):
    """Keeps one replay or queue durable; the first process that opens it is its flusher.

    `kept` returns the words of the slots that a mark records, see watermark.py.

    Attributes:
        recovered: what was left when the machine stopped, if this process was the first to open the segment since then.
    """

    def __init__(self, view: LaneView, options: Durable, kept: Kept | None) -> None:
        segment, geometry = view.segment, view.geometry
        self.options, self.path = options, Path(segment.path)
        self.marks = Marks(self.path, segment.body, geometry)
        held, self.recovered = take_flushing(segment, geometry, self.marks, hollow)
        if self.recovered is not None:
            rows, cut, overwritten = self.recovered.rows, self.recovered.cut, self.recovered.overwritten
            left = f"{rows:,} rows are whole; {cut:,} newer and {overwritten:,} older rows are lost"
            log.warning("%s: the machine stopped while it was in use: %s", self.path, left)
        self._flushing: Flushing | None = None
        self._flusher: Flusher | None = None
        view.native.withhold(self.marks.words_offset)
        if held is not None:
            with ClosedAfterError(held):
                self._flushing = Flushing(segment, view.native, geometry, self.marks, held, kept)
                self._flusher = Flusher(self._flushing, options.every_s)

    def begin(self) -> None:
        """Puts a new segment and its name on disk. Raises OSError."""
        if self._flushing is not None:
            self._flushing.flush()
            sync_directory(self.path.parent)

    def close(self) -> None:
        """Puts the rows on disk a last time, then lets another process be the flusher. Raises the flusher's error."""
        if self._flusher is not None:
            flusher, self._flusher = self._flusher, None
            flusher.close()


def hollow(word: int) -> int:
    """Returns the first word of a boundary row that follows a row whose first word is `word`."""
    ordinal, is_boundary = word & _COUNT, word >> _FLAGS & BOUNDARY
    return (ordinal + (not is_boundary)) & _COUNT | BOUNDARY << _FLAGS
