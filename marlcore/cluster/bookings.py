"""Bookings: an ingest's record of the rows that each target lane has taken, which survives the ingest's death.

Each lane has a cache line of words: `turn`, whose lowest bit selects the valid half, and two halves, each with the four
fields of a `Booking`. The holder of the lane's writer lock writes the invalid half; then a single store of `turn` makes
that half valid. A ticket is a row's number in its lane. Rows that arrive in order change no booking, since the sender's
next ticket is computed from the number of rows committed in the target lane.
"""

from dataclasses import astuple, dataclass

from ..checks import check_whole
from ..memory import LINE, Segment, Shared, Words

_WORDS = LINE // 8
_HALF = 4


@dataclass(frozen=True)
class Booking:
    """The position up to which a target lane has copied its sender's lane.

    Attributes:
        epoch: the epoch of the sender whose rows the lane takes.
        offset: the sender's next ticket minus the number of rows committed in the target lane.
        seam: the lane's newest ticket whose row does not continue the row before it.
        lost: the number of rows, over all epochs, that a sender overwrote before sending them.
    """

    epoch: int = 0
    offset: int = 0
    seam: int = 0
    lost: int = 0


class Bookings(Shared):
    """The bookings of all lanes of a replay or queue. They must live as long as that replay or queue."""

    kind = "bookings"

    def _understand(self, segment: Segment) -> None:
        self.lanes: int = segment.description["lanes"]
        check_whole("lanes", self.lanes, high=len(segment.body) // LINE)
        self._words = Words(segment.body)

    @classmethod
    def create(cls, lanes: int, *, name: str = "bookings") -> "Bookings":
        """Creates empty bookings for a number of lanes.

        Raises: ValueError: `lanes` is not a positive integer. SharedMemoryFull: shared memory has no room.
        """
        check_whole("lanes", lanes)
        return cls(Segment.create(name, {"kind": cls.kind, "lanes": int(lanes)}, LINE * int(lanes)))

    def load(self, lane: int) -> Booking:
        """Returns a lane's booking. Any process may call this method."""
        line = lane * _WORDS
        while True:
            turn = self._words.load(line)
            first = line + 1 + (turn & 1) * _HALF
            booking = Booking(*(self._words.load(first + i) for i in range(_HALF)))
            if self._words.load(line) == turn:
                return booking

    def store(self, lane: int, booking: Booking) -> None:
        """Replaces the lane's booking atomically; the caller must hold the lane's writer lock."""
        line = lane * _WORDS
        first = line + 1 + ((self._words.load(line) + 1) & 1) * _HALF
        for i, word in enumerate(astuple(booking)):
            self._words.store(first + i, word)
        self._words.add(line, 1)

    @property
    def lost(self) -> int:
        """The number of rows, over all lanes, that a sender overwrote before sending them."""
        self.check_open()
        return sum(self.load(lane).lost for lane in range(self.lanes))
