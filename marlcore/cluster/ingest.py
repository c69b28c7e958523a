"""The ingest: takes messages of rows from relays, and writes each row once to its lane at home."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..closing import Closing
from ..queue import TrajectoryQueue
from ..replay import ReplayBuffer
from .bookings import Bookings

Ints = NDArray[np.int64]


@dataclass
class IngestStats:
    """An ingest's counters.

    Attributes:
        rows: written to the target, boundary rows included.
        bytes: of messages, as they came.
        messages: taken.
        duplicates: rows that had been written before, and were left out.
        gaps: rows that their senders had overwritten.
        refused: messages of fenced epochs.
        waited: seconds that messages waited for room.
    """

    rows: int = 0
    bytes: int = 0
    messages: int = 0
    duplicates: int = 0
    gaps: int = 0
    refused: int = 0
    waited: float = 0.0


class Ingest(Closing):
    """Writes the rows that relays send to a replay or queue; it holds the writing ends of its seats' lanes.

    Example:
        bookings = mc.cluster.Bookings.create(replay.lanes)
        ingest = mc.cluster.Ingest(replay, bookings, seats=[range(0, 8), range(8, 16)])

    It may be killed at any moment: the next one with the same target and bookings continues with the same row. Any
    thread may call `open` and `put`; calls of one seat follow one another.

    Attributes:
        stats: see IngestStats.
    """

    def __init__(
        self,
        target: ReplayBuffer | TrajectoryQueue,
        bookings: Bookings,
        seats: Sequence[range],
        *,
        holds: Callable[[int, int], bool] | None = None,
        wait_seconds: float = 0.2,
    ) -> None:
        """
        Args:
            target: the replay or queue at home. A queue that drops the newest is refused.
            bookings: of the target's lanes.
            seats: by seat, the consecutive lanes of the target that take the rows of its sender.
            holds: holds(seat, epoch) tells whether this epoch still has the seat's lease; None: the newest has.
            wait_seconds: the longest wait of a `put` for room in a queue that waits, or for a limiter.

        Raises:
            LaneBusy: a lane has a living writer, such as another ingest.
            ValueError: lanes that the target lacks or that two seats have; bookings of another number of lanes.
        """
        raise NotImplementedError

    def open(self, seat: int, epoch: int, lanes: int, spec: dict[str, object]) -> Ints:
        """The next ticket of each of the sender's lanes, int64 [lanes], from which its relay shall send.

        Args:
            seat: the sender's place.
            epoch: the incarnation of the sender in this seat, at least 1; a higher one replaces it for ever.
            lanes: of the sender's replay or queue. spec: its TransitionSpec, by `to_dict`.

        Raises:
            Fenced: the epoch is not the seat's, or no longer. ValueError: an unknown seat, or more lanes than it has.
            LayoutMismatch: the target has another spec.
        """
        raise NotImplementedError

    def put(self, message: NDArray[np.uint8]) -> bool:
        """Writes the rows of a message that were not written before; see message.py for its form.

        Returns: False if there was no room for all of them in `wait_seconds`, or a message before this one is missing:
            the relay then continues at what `open` returns.

        Raises: Fenced: as `open`; nothing was written. ValueError: the message is malformed; nothing was written.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Gives the lanes back, once no call is inside. Repeated calls are harmless."""
        raise NotImplementedError
