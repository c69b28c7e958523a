"""The trajectory queue: lanes of transitions that one reader consumes in order, for on-policy learners."""

import os
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_whole
from ..fixed import fixed
from ..kernels.inorder import DROPPED, PASSED, SKIPPED
from ..memory import Kept, Segment
from ..observations import Pad
from ..spec import TransitionSpec
from ..transitions import Durable, RowsReader, TransitionLanes, Writer
from .cursor import KEPT, CursorLines
from .gates import QueueGates, UnreadLimit
from .reader import QueueRowsReader, TrajectoryReader, checked_window

WHEN_FULL = ("wait", "drop_oldest", "drop_newest")
LEAST_ROWS = 3  # a transition with its final_obs, plus the newest row


@fixed()
class TrajectoryQueue(TransitionLanes):
    """Transitions in shared memory; each is read once, lane by lane in the order of writing.

    Each lane has one writer and the queue has one reader at a time, in any processes, with no locks between them. Every
    transition that a writer adds is delivered, dropped, skipped or still in the queue:

        added == delivered + queue.dropped.sum() + queue.skipped.sum() + len(queue)

    Example:
        queue = TrajectoryQueue.create(spec, capacity=4096, lanes=2)
        # pass it, or its handle, to other processes

        with queue.writer(lane=0, timeout=60.0) as writer:  # in an actor
            writer.add(obs, action, reward, log_prob=0.1)

        with queue.reader(batch_size=16, length=128) as reader:  # in the learner
            batch = reader.read(timeout=60.0)  # obs [16, 128, ...], mask [16, 128]

    A killed process stops no other. A writer's successor begins a new episode, so no delivered trajectory crosses the
    seam. A reader's successor continues at the cursor, which each batch moves with one store: every transition is
    delivered at most once, and exactly once unless its reader ended before it used a batch that it had taken or begun.
    A durable queue keeps rows until `reader.commit`, so that a successor reads on from the last commit: if the state of
    what was learned is saved before each commit, every transition is learned from exactly once.

    Attributes:
        spec: the fields of a transition.
        capacity: rows in all lanes together; a boundary row (an episode's final_obs) takes one too.
        lanes: the number of lanes.
        when_full: the behaviour of a writer whose lane is full of unread rows.
        max_unread: writers wait while this many transitions are unread in all lanes together; None: no such limit.
        durable: how the queue survives the end of the machine; None if it need not.
        recovered: see `ReplayBuffer`.
    """

    kind = "queue"
    _attaches_anew = True
    _keep = "its rows are read once, and none are kept"
    _kept_words = KEPT

    def _understand(self, segment: Segment) -> None:
        self.when_full: str = segment.description["when_full"]
        if self.when_full not in WHEN_FULL:
            raise ValueError(f"when_full: expected one of {', '.join(WHEN_FULL)}, got {self.when_full!r}")
        self.max_unread: int | None = segment.description["max_unread"]
        super()._understand(segment)
        self._lines = CursorLines(segment, self._mapped.geometry)

    @classmethod
    def create(
        cls,
        spec: TransitionSpec,
        capacity: int,
        lanes: int = 1,
        *,
        when_full: Literal["wait", "drop_oldest", "drop_newest"] = "wait",
        max_unread: int | None = None,
        name: str = "queue",
        path: str | os.PathLike[str] | None = None,
        durable: Durable | None = None,
    ) -> "TrajectoryQueue":
        """Creates an empty queue.

        Args:
            spec: the fields of a transition.
            capacity: rows in all lanes together, from 3 per lane to 2^32 - 1; rounded down to a multiple of
                `lanes`, and of the interval at which the spec stores recurrent states.
            lanes: the number of independent writers.
            when_full: "wait": writers wait for the reader; a writer is at most one lane's rows ahead of the reader.
                "drop_oldest": writers never wait, and overwrite the oldest unread rows. "drop_newest": writers never
                wait, and drop rows that find no room; the row after a gap begins an episode.
            max_unread: with "wait", writers also wait while this many transitions are unread in all lanes together, so
                that writers are never much ahead. While the reader waits for more, the limit is at least two batches
                above the number of unread transitions. An add that begins below the limit is completed.
            name, path: as for `ReplayBuffer.create`.
            durable: keeps the file's rows until `reader.commit`, also through SIGKILL of every process, and through
                power cuts up to a watermark; see docs/reliability.md. Only with "wait". If lanes have fewer than
                some thousand rows, a writer then waits for the disk about once per commit, for all its lanes together,
                since it may not promise more than it has room for. One add may have at most a quarter of a lane's rows.

        Raises:
            ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the queue.
        """
        lane_rows = cls._lane_rows(spec, capacity, lanes)
        if when_full not in WHEN_FULL:
            raise ValueError(f"when_full: expected one of {', '.join(WHEN_FULL)}, got {when_full!r}")
        if max_unread is not None:
            check_whole("max_unread", max_unread)
            if when_full != "wait":
                raise ValueError(f"max_unread: expected None for when_full={when_full!r}, got {max_unread}")
        if lane_rows < LEAST_ROWS:
            raise ValueError(f"capacity: expected at least {LEAST_ROWS * lanes}, 3 rows a lane, got {capacity}")
        if durable is not None and when_full != "wait":
            raise ValueError(f"durable: expected None for when_full={when_full!r}, got {brief(durable)}")
        return cls._create(spec, lanes, lane_rows, name, path, durable, when_full=when_full, max_unread=max_unread)

    def writer(self, lane: int = 0, *, timeout: float | None = None) -> Writer:
        """Returns the writer of a lane, which this process holds alone until it closes the writer or dies.

        A successor continues after the last row; no window of a batch crosses the seam. One `add_batch` may add only as
        many rows as the reader can free at once: a longer batch raises a ValueError that names the limit. With
        "drop_oldest" the limit is a whole lane.

        Args:
            lane: the lane's index.
            timeout: with "wait", how many seconds an add waits for room before it raises TimeoutError and writes
                nothing. None: an add waits for ever, even without a reader, since a reader may come; a warning says so.

        Raises:
            LaneBusy: the lane has a living writer. ValueError: the lane does not exist, or the timeout is negative.
        """
        return self._open_writer(lane, timeout)

    def reader(
        self,
        batch_size: int,
        *,
        length: int | None = None,
        stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        pad: Pad = "repeat",
    ) -> TrajectoryReader:
        """Returns the reader, which this process holds alone; after its end a successor continues at the cursor.

        A batch holds one run of each lane, lower lanes first; `batch.index` maps rows to lanes. Runs are equally long
        if each lane holds enough rows. A lane without a writer contributes nothing. If a batch lacks rows while a
        writer waits for room in a lane, the reader takes that lane's rows at once: the batch begins with them, and may
        have several runs of that lane.

        A transition is delivered once its n steps are written. If a successor has a longer stack, it drops the first
        transitions whose frames were overwritten. A transition that no batch can hold, such as one whose episode
        `new_episode` cut off, is skipped (see `skipped`), and occupies room until the row before it is read. So where
        writers wait, end episodes by terminated or truncated, and do not call `new_episode` at every other row.

        Args:
            batch_size: transitions of a batch, or unrolls.
            length: transitions of an unroll: obs becomes [B, T, ...], and so on; see Batch. Each unroll begins where
                its lane's last one stopped, and ends with its episode if that ends first; `batch.mask` is False after
                that end. Must be a multiple of the interval at which the spec stores recurrent states. None: single
                transitions.
            stack, n_step, gamma, pad: as for `ReplayBuffer.sampler`.

        Raises:
            LaneBusy: the queue has a living reader.
            ValueError: an option is out of range, or a lane has too few rows for it: reader and writers would wait for
                ever, the reader for a whole transition or unroll and the writers for room.
        """
        self._segment.check_open()
        window = checked_window(self._mapped, batch_size, length, stack, n_step, gamma, pad)
        reader = TrajectoryReader(self._mapped, window, int(batch_size))
        self._ends.add(reader)
        return reader

    def rows_reader(self) -> RowsReader:
        """Returns a reader of raw rows, which takes the place of the queue's reader; rows that it releases make room.

        Raises LaneBusy if the queue has a living reader, ValueError if its writers do not wait or it is durable.
        """
        self._segment.check_open()
        if self.when_full != "wait":
            raise ValueError(f"when_full: expected 'wait' for a queue whose rows are sent, got {self.when_full!r}")
        reader = QueueRowsReader(self._mapped)
        self._ends.add(reader)
        return reader

    @property
    def dropped(self) -> NDArray[np.int64]:
        """Transitions lost in each lane, int64 [lanes]: overwritten before they were read, or refused for lack of room.

        The count is exact, like `len`, if fewer than 2^32 transitions are overwritten between two batches and fewer
        than 2^32 boundary rows are written to a lane. While other processes are active, it may be a moment old.
        """
        cursor, _, overwritten = self._counts()
        refused = np.array([self._lines.refused(lane) for lane in range(self.lanes)])
        dropped: NDArray[np.int64] = cursor[DROPPED] + overwritten + refused
        return dropped

    @property
    def skipped(self) -> NDArray[np.int64]:
        """Transitions of each lane that no batch could hold, int64 [lanes].

        Either their episode is cut off, since their writer died, began another episode or dropped the next row; or an
        unroll would have to begin with them, where no recurrent state is stored.
        """
        self._segment.check_open()
        skipped: NDArray[np.int64] = self._lines.load()[SKIPPED]
        return skipped

    def __len__(self) -> int:
        """Counts the transitions that were neither read (in a durable queue: committed) nor overwritten.

        Boundary rows do not count.
        """
        return int(self._counts()[1].sum())

    @classmethod
    def _slots(cls, description: dict[str, Any]) -> int:
        return 1 + int(description["lanes"])

    def _kept(self) -> Kept:
        return CursorLines(self._segment, self._mapped.geometry).kept

    def _gates(self, lanes: list[int]) -> QueueGates:
        unread = None if self.max_unread is None else UnreadLimit(self._mapped, self._lines, self.max_unread)
        return QueueGates(self._mapped, lanes, self.when_full, unread)

    def _counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        self._segment.check_open()
        lanes = range(self.lanes)
        written = np.array([self._mapped.native.written(lane) for lane in lanes])
        held = np.array([self._mapped.native.transitions(lane) for lane in lanes])
        cursor = self._lines.load()  # loaded last: rows read and then overwritten meanwhile would count as dropped
        behind = np.maximum(0, written - cursor[PASSED])
        unread = np.minimum(behind, held)
        return cursor, unread, behind - unread
