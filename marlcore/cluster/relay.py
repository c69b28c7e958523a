"""The relay: sends the committed rows of a node's replay or queue to the ingest until the ingest has each row."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_timeout, check_whole
from ..closing import Closing
from ..declared import Number
from ..errors import LinkLost
from ..memory import AFTER, FIRST, LANE, ROWS
from ..queue import TrajectoryQueue
from ..replay import ReplayBuffer
from .ingest import UNKNOWN, Ingest
from .message import SPAN_WORDS, Compress, codec, rows_offset, seal

INLINE_BYTES = 90_000  # the largest argument and result of a call; larger ones go through Ray's object store
LEAST_BYTES, MOST_BYTES = 16 << 20, 32 << 20  # bytes of rows that are sent without delay; the most in one message
IN_FLIGHT = 2  # messages at a time; while the ingest writes one, the next is on its way
DELAYS = 1000
ANSWER_S = 120.0  # seconds that an answer may take: at 10 Mbit/s, two of the largest messages take less than half
LOOK_S = 0.002  # seconds between two checks in `drain`
LONGEST_FLUSH_S = 60.0
MOST_ROOM = 1 << 40  # bytes
PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # seconds before a lost link is opened again

Bytes = NDArray[np.uint8]
Ints = NDArray[np.int64]


class Link(Protocol):
    """A relay's link to an ingest. Methods raise Fenced as the ingest does, or LinkLost if it cannot be reached."""

    def open(self, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        """See `Ingest.open`."""

    def send(self, message: NDArray[np.uint8]) -> "Future[bool]":
        """Sends a message to `Ingest.put`, and returns its future result. The caller may then reuse the memory."""


class DirectLink:
    """A link to an ingest in this process."""

    def __init__(self, ingest: Ingest) -> None:
        self._ingest = ingest
        self.open = ingest.open

    def send(self, message: NDArray[np.uint8]) -> "Future[bool]":
        answer: Future[bool] = Future()
        answer.set_result(self._ingest.put(message))
        return answer


@dataclass
class RelayStats:
    """A relay's counters.

    Attributes:
        rows: rows that the ingest has, boundary rows included.
        bytes: bytes of the messages sent; raw_bytes: the same before compression.
        messages: messages sent. in_flight: sent messages that are not answered yet.
        gaps: rows that were overwritten here before they were sent.
        rewinds: how often the relay asked the ingest again where to continue.
        delays: for each of the last 1,000 messages, the seconds from the time when the relay saw the message's oldest
            row to the ingest's answer.
    """

    rows: int = 0
    bytes: int = 0
    raw_bytes: int = 0
    messages: int = 0
    in_flight: int = 0
    gaps: int = 0
    rewinds: int = 0
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=DELAYS), repr=False)

    def delay(self, percentile: float) -> float:
        """Returns a percentile (0 to 100) of the delays, in seconds; 0.0 if no message was answered yet."""
        return float(np.percentile([*self.delays], percentile)) if self.delays else 0.0


class Relay(Closing):
    """Sends the rows of a replay or queue to an ingest, in a thread that runs from `start` to `close`.

    Example:
        with mc.cluster.Relay(replay, link, seat=0, epoch=1).start() as relay:
            ...  # actors write to the replay, in any processes

    Each row arrives once, in the order of its lane. After a lost message or the death of the ingest, the relay reads
    unacknowledged rows from the lanes again. Rows of a ReplayBuffer that are overwritten before they are
    sent are lost, and count as gaps; no sample spans a gap. A TrajectoryQueue with when_full="wait" makes writers wait
    instead; the relay is its reader.

    Attributes:
        stats: the counters, a RelayStats.
        error: the exception that ended the relay, such as Fenced; None while it works.
    """

    def __init__(
        self,
        source: ReplayBuffer | TrajectoryQueue,
        link: Link,
        *,
        seat: int = 0,
        epoch: int = 1,
        flush_seconds: float = 0.2,
        compress: Compress = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            source: the node's replay or queue; its lanes are the seat's first lanes.
            link: the link to the ingest.
            seat, epoch: see `Ingest.open`.
            flush_seconds: the most seconds, up to 60, that a row waits before it is sent. Rows of at most 90 kB
                together wait a tenth of it; rows that fill half of a lane, or 16 MiB, are sent at once.
            compress: "lz4" compresses messages, which saves time if observations are frames; None does not compress.
            clock: a monotonic clock in seconds.

        Raises: ValueError: an option is out of range, or the source is a queue that does not wait.
            LaneBusy: the queue has a living reader.
        """
        check_whole("seat", seat, low=0)
        check_whole("epoch", epoch)
        if compress not in ("lz4", None):
            raise ValueError(f"compress: expected 'lz4' or None, got {brief(compress)}")
        if compress is not None:
            codec()  # raises here rather than at the first message
        self.stats = RelayStats()
        self.error: Exception | None = None
        self._link = self._home = link  # the link in use, and the one that the next poll uses
        self._seat, self._epoch = seat, epoch
        self._flush_seconds: float = Number(above=0, high=LONGEST_FLUSH_S)("flush_seconds", flush_seconds)
        self._compress, self._clock = compress, clock
        self._spec = source.spec.to_dict()
        self._rows = source.rows_reader()
        self._lanes = source.lanes
        self._is_open = False  # whether the ingest has said where to continue
        self._next = np.zeros(source.lanes, np.int64)  # by lane: the ticket to send next
        self._acked = np.full(source.lanes, -1)  # by lane: the ticket below which the ingest has all rows; -1: unknown
        # By lane, the ticket below which rows were sent to any ingest; to an earlier one; and are not sent to this one
        self._sent, self._elsewhere, self._floor = np.zeros((3, source.lanes), np.int64)
        # The messages in flight: spans, the time at which the oldest row was seen, and the ingest's answer
        self._flight: deque[tuple[Ints, float, Future[bool]]] = deque()
        self._heard = 0.0  # the time when the last answer came, or the first message in flight was sent
        self._seen: float | None = None  # the time when the oldest waiting row was seen
        self._turn = 0  # the lane from which the next message begins
        self._memory = np.empty(0, np.uint8)
        self._hurry = False
        self._thread: Thread | None = None
        self._stopping, self._wake = Event(), Event()

    def start(self) -> "Relay":
        """Starts the thread, and returns the relay. After a LinkLost, the thread pauses and opens the link again."""
        self._thread = Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()
        return self

    def poll(self) -> bool:
        """For a relay without a thread: takes the answers that have come, then sends the next message if that is due.

        Returns: whether a message was sent. Raises: Fenced; LinkLost.
        """
        if self._link is not self._home:
            self._link = self._home
            self._rewind()
            self._elsewhere = self._sent
        self._hear()
        if not self._is_open:
            self._connect()
        self._rows.look()
        waiting = np.maximum(self._rows.hi - self._next, 0)
        if not waiting.any():
            self._seen = None
            return False
        now = self._clock()
        self._seen = now if self._seen is None else self._seen
        if len(self._flight) >= IN_FLIGHT or not self._is_due(waiting, now - self._seen):
            return False
        sent = self._send(waiting)
        self._hear()
        return sent

    def drain(self, timeout: float) -> bool:
        """Waits until the ingest has every row that was committed before the call; returns False at the timeout.

        Raises: the exception that ended the relay, or, if the relay has no thread, any exception of `poll`.
        """
        check_timeout(timeout, or_none=False)
        deadline = self._clock() + timeout
        self._rows.look()
        wanted = self._rows.hi.copy()
        self._hurry = True
        self._wake.set()
        try:
            while True:
                if self._thread is None:
                    self.poll()
                if (self._acked >= wanted).all():
                    return True
                if self.error is not None:
                    raise self.error
                if self._clock() >= deadline:
                    return False
                if self._thread is not None:
                    time.sleep(LOOK_S)
        finally:
            self._hurry = False

    def move(self, link: Link) -> None:
        """Switches to another ingest, and sends it all rows that it lacks, if the lanes still hold them.

        If a lane there has rows already, it is sent only rows that were sent to no earlier ingest.
        """
        self._home = link
        self._wake.set()

    def close(self) -> None:
        """Ends the thread after the message that it is sending; unsent rows stay in the source."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
        self._rows.close()

    def _run(self) -> None:
        pause = PAUSE_S
        while not self._stopping.is_set():
            try:
                sent = self.poll()
                pause = PAUSE_S
            except LinkLost:
                self._rewind()
                self._stopping.wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE_S)
                continue
            except Exception as error:
                self.error = error
                return
            if not sent:
                self._wake.wait(self._flush_seconds / 40)
                self._wake.clear()

    def _connect(self) -> None:
        """Asks the ingest where to continue each lane; see `Ingest.open`."""
        cursor = self._link.open(self._seat, self._epoch, self._lanes, self._spec)
        self._floor = np.where(cursor == UNKNOWN, self._elsewhere, 0)
        self._next = np.where(cursor == UNKNOWN, 0, cursor)
        past = np.maximum(self._next, self._floor)
        self._acked = np.where(self._acked < 0, past, self._acked)  # rows of earlier relays are not counted
        self._acknowledge(np.arange(self._lanes), past)
        self._is_open = True

    def _rewind(self) -> None:
        """Forgets the messages in flight; the next poll asks the ingest where to continue."""
        self._sent = np.maximum(self._sent, self._next)
        self.stats.rewinds += self._is_open
        self.stats.in_flight = 0
        self._flight.clear()
        self._is_open = False

    def _hear(self) -> None:
        """Takes the answers that have come, in the order of the messages.

        Raises LinkLost if no answer comes for ANSWER_S: a transport may lose an answer when the network fails.
        """
        while self._flight and self._flight[0][-1].done():
            spans, seen, taken = self._flight.popleft()
            self.stats.in_flight, self._heard = len(self._flight), self._clock()
            if not taken.result():
                self._rewind()
                return
            self.stats.delays.append(self._clock() - seen)
            after = np.maximum(spans[:, AFTER], self._acked[spans[:, LANE]])  # rows of earlier ingests are not gaps
            gaps = int(np.maximum(spans[:, FIRST] - after, 0).sum())
            self.stats.gaps += gaps
            self.stats.rows -= gaps
            self._acknowledge(spans[:, LANE], spans[:, FIRST] + spans[:, ROWS])
        if self._flight and self._clock() - self._heard > ANSWER_S:
            raise LinkLost(f"the ingest cannot be reached: no answer for {ANSWER_S:g} s")

    def _acknowledge(self, lanes: Ints, tickets: Ints) -> None:
        tickets = np.maximum(self._acked[lanes], tickets)
        self.stats.rows += int((tickets - self._acked[lanes]).sum())
        self._acked[lanes] = tickets
        self._rows.release(self._acked)

    def _is_due(self, waiting: Ints, waited: float) -> bool:
        nbytes = int(waiting.sum()) * self._rows.row_bytes
        wait = self._flush_seconds / 10 if nbytes <= INLINE_BYTES else self._flush_seconds
        is_near_lap = bool((2 * waiting >= self._rows.lane_rows).any())
        return self._hurry or is_near_lap or nbytes >= LEAST_BYTES or waited >= wait

    def _send(self, waiting: Ints) -> bool:
        """Sends the next message; returns False if none of the waiting rows may be sent yet."""
        assert self._seen is not None
        spans = self._spans(waiting)
        if not len(spans):
            return False
        begin = rows_offset(len(spans))
        needed = begin + self._rows.place(spans, MOST_ROOM)[1]
        if needed > len(self._memory):
            self._memory = np.empty(needed, np.uint8)
        nbytes = self._rows.read(spans, self._memory[begin:])
        read = spans[:, ROWS] > 0  # the other spans were overwritten meanwhile
        if not read.any():
            return False
        message = seal(self._memory, self._seat, self._epoch, spans, nbytes, self._compress)
        taken = self._link.send(message)
        if not self._flight:
            self._heard = self._clock()
        self._flight.append((spans[read], self._seen, taken))
        taken.add_done_callback(lambda _: self._wake.set())
        self._next[spans[read, LANE]] = (spans[:, FIRST] + spans[:, ROWS])[read]
        self._seen = self._clock() if (self._next < self._rows.hi).any() else None
        self.stats.messages += 1
        self.stats.in_flight = len(self._flight)
        self.stats.bytes += len(message)
        self.stats.raw_bytes += begin + nbytes
        return True

    def _spans(self, waiting: Ints) -> Ints:
        """Returns the next message's spans, int64 [n, 4], sorted by lane.

        Lanes fill the message in turn, beginning with the lane at which the last message ended.
        """
        order = np.roll(np.arange(len(waiting)), -self._turn)
        order = order[waiting[order] > 0]
        first = self._next[order].copy()
        lapped = self._least()[order] > first
        for i in np.flatnonzero(lapped).tolist():
            first[i] = self._after_gap(int(order[i]))
        rows = self._rows.hi[order] - first
        left = max(1, int(MOST_BYTES / self._rows.row_bytes)) - (np.cumsum(rows) - rows)
        rows = np.clip(left, 0, rows)
        sent = np.flatnonzero(rows > 0)
        if not len(sent):
            return np.empty((0, SPAN_WORDS), np.int64)
        self._turn = int(order[sent[-1]])
        spans = np.stack([order, self._next[order], first, rows], axis=1)[sent]
        return np.ascontiguousarray(spans[np.argsort(spans[:, LANE])])

    def _after_gap(self, lane: int) -> int:
        """Returns the ticket at which to continue an overwritten lane, with a lead over the writer."""
        lo, hi, least = int(self._rows.lo[lane]), int(self._rows.hi[lane]), int(self._least()[lane])
        return self._rows.first_to_send(lane, least if least > lo else min(lo + (hi - lo) // 8, hi - 1))

    def _least(self) -> Ints:
        """Returns each lane's lowest ticket that may be sent; a queue's acknowledged rows are never sent again."""
        return np.maximum(self._rows.lo, self._acked if self._rows.once else self._floor)
