"""Bookings: an ingest's memory of the rows that each lane at home has taken, which survives the ingest's death.

A lane's line has a word `turn`, whose lowest bit selects the valid half, and two halves of four words, the fields
of a `Booking`. Rows that arrive change nothing here: the lane's commit moves the cursor with the rows. The holder of
the lane's writer lock writes the invalid half; one store of `turn` makes that half valid.
"""

from dataclasses import astuple, dataclass
from typing import Any

from ..checks import check_whole
from ..memory import LINE, Segment, Shared, Words

_WORDS = LINE // 8
_HALF = 4


@dataclass(frozen=True)
class Booking:
    """What a lane has taken of its sender.

    Attributes:
        epoch: of the sender whose rows the lane takes.
        offset: of that sender's tickets: the next one is offset + the lane's own committed ticket.
        seam: the lane's ticket at which a row does not follow the one before it.
        lost: rows that were overwritten at their senders, of all epochs.
    """

    epoch: int = 0
    offset: int = 0
    seam: int = 0
    lost: int = 0


class Bookings(Shared):
    """The bookings of the lanes of one replay or queue; create them beside it, and keep them as long as it lives."""

    kind = "bookings"

    def _understand(self, segment: Segment) -> None:
        self.lanes: int = segment.description["lanes"]
        check_whole("lanes", self.lanes, high=len(segment.body) // LINE)
        self._words = Words(segment.body)

    @classmethod
    def create(cls, lanes: int, *, name: str = "bookings") -> "Bookings":
        """Empty bookings of so many lanes.

        Raises: ValueError: lanes is not a positive integer. SharedMemoryFull: no room.
        """
        check_whole("lanes", lanes)
        description: dict[str, Any] = {"kind": cls.kind, "lanes": int(lanes)}
        return cls(Segment.create(name, description, LINE * int(lanes)))

    def load(self, lane: int) -> Booking:
        """A lane's booking, as any process reads it."""
        line = lane * _WORDS
        while True:
            turn = self._words.load(line)
            first = line + 1 + (turn & 1) * _HALF
            booking = Booking(*(self._words.load(first + i) for i in range(_HALF)))
            if self._words.load(line) == turn:
                return booking

    def store(self, lane: int, booking: Booking) -> None:
        """For the holder of the lane's writer lock: replaces the lane's booking, with one store."""
        line = lane * _WORDS
        first = line + 1 + ((self._words.load(line) + 1) & 1) * _HALF
        for i, word in enumerate(astuple(booking)):
            self._words.store(first + i, word)
        self._words.add(line, 1)

    @property
    def lost(self) -> int:
        """Rows of all lanes that were overwritten at their senders before they were sent."""
        self.check_open()
        return sum(self.load(lane).lost for lane in range(self.lanes))
