"""The relay: reads the committed rows of a node's replay or queue, and sends each to the ingest until it has it."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ..closing import Closing
from ..queue import TrajectoryQueue
from ..replay import ReplayBuffer
from .ingest import Ingest

Ints = NDArray[np.int64]


class Link(Protocol):
    """A relay's way to an ingest. Every method raises Fenced, or LinkLost where the ingest cannot be reached."""

    def open(self, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        """See `Ingest.open`."""

    def send(self, message: NDArray[np.uint8]) -> "Future[bool]":
        """Sends a message to `Ingest.put`; the caller may change its memory after the return."""


class DirectLink:
    """The way to an ingest in this process."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        self.open = ingest.open

    def send(self, message: NDArray[np.uint8]) -> "Future[bool]":
        taken: Future[bool] = Future()
        taken.set_result(self._ingest.put(message))
        return taken


@dataclass
class RelayStats:
    """A relay's counters.

    Attributes:
        rows: that the ingest has, boundary rows included.
        bytes: of messages sent; raw_bytes: the same before compression.
        messages: sent. in_flight: of these, the ones not yet answered.
        gaps: rows that were overwritten here before they were sent.
        rewinds: how often the relay asked again where to continue.
        delays: seconds from seeing a row to its arrival, of the last 1,000 messages' oldest rows.
    """

    rows: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    messages: int = 0
    in_flight: int = 0
    gaps: int = 0
    rewinds: int = 0

    def delay(self, percentile: float) -> float:
        """Seconds; 0 without messages."""
        raise NotImplementedError


class Relay(Closing):
    """Sends the rows of a replay or queue to an ingest, from a thread of its own between `start` and `close`.

    Example:
        with mc.cluster.Relay(replay, link, seat=0, epoch=1).start() as relay:
            ...  # actors write to the replay, in any processes

    Rows arrive once, in the order of each lane. A lane's rows are its memory of what was sent: after a lost message or
    the death of the ingest, the relay reads them again. Of a ReplayBuffer that writers lap meanwhile, rows are lost;
    they are counted as gaps, and nothing that is drawn at home spans one. A TrajectoryQueue with when_full="wait" makes
    its writers wait instead; the relay is its reader.

    Attributes:
        stats: see RelayStats.
        error: what ended the relay, such as Fenced; None while it works.
    """

    def __init__(
        self,
        source: ReplayBuffer | TrajectoryQueue,
        link: Link,
        *,
        seat: int = 0,
        epoch: int = 1,
        flush_seconds: float = 0.2,
        compress: Literal["lz4"] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """
        Args:
            source: the node's replay or queue, whose lanes are the first ones of the seat.
            link: the way to the ingest.
            seat, epoch: see `Ingest.open`.
            flush_seconds: the longest wait of a row for others that go with it; few bytes (90 KB) wait a tenth of it.
            compress: "lz4" compresses messages, for frames.
            clock: seconds; time.monotonic by default.

        Raises: ValueError: an option is out of range, or the source is a queue that does not wait.
            LaneBusy: the queue has a living reader.
        """
        raise NotImplementedError

    def start(self) -> "Relay":
        """Starts the thread. It opens the link again, with pauses, while LinkLost is raised."""
        raise NotImplementedError

    def poll(self) -> bool:
        """One round without the thread, for callers with a loop of their own: answers, then the next message if due.

        Returns: whether a message was sent. Raises: Fenced; LinkLost.
        """
        raise NotImplementedError

    def drain(self, timeout: float) -> bool:
        """Waits until the ingest has every row committed before the call; False at the timeout.

        Raises: what ended the relay.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends the thread, after the message that is being sent; rows that wait stay in the source."""
        raise NotImplementedError
