"""The trajectory queue: lanes of transitions that one reader consumes in order, for on-policy learners."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..interfaces import Gate
from ..memory import Segment
from ..spec import TransitionSpec
from ..transitions import TransitionLanes, Writer
from .cursor import CursorLines, QueueGate

if TYPE_CHECKING:
    from .reader import TrajectoryReader

__all__ = ["TrajectoryQueue"]

WHEN_FULL = ("wait", "drop_oldest", "drop_newest")
LEAST_ROWS = 3  # a transition with its final_obs, and the newest row
PASSED, DROPPED, SKIPPED = 1, 2, 3  # of a cursor, see kernels/inorder.py


class TrajectoryQueue(TransitionLanes):
    """Transitions in shared memory that are read once each, lane by lane in the order in which they were written.

    One writer a lane, and one reader at a time, in any processes; no locks between them. Every transition that a
    writer adds is delivered, dropped, skipped, or still there:

        added == delivered + queue.dropped.sum() + queue.skipped.sum() + len(queue)

    Example:
        queue = TrajectoryQueue.create(spec, capacity=4096, lanes=2)  # its handle, or itself, goes to other processes

        with queue.writer(lane=0, timeout=60.0) as writer:  # in an actor
            writer.add(obs, action, reward, log_prob=0.1)

        with queue.reader(batch_size=16, length=128) as reader:  # in the learner
            batch = reader.read(timeout=60.0)  # obs [16, 128, ...], mask [16, 128]

    Whoever is killed stops nobody. A writer's successor begins an episode: nothing that is delivered reaches across.
    A reader's successor goes on at the cursor, which a batch moves with one store: every transition is delivered at
    most once, and exactly once unless its reader died between that store and its use of the batch.

    Attributes:
        spec: what a transition consists of.
        capacity: rows in all lanes together; a boundary row (an episode's final_obs) takes one too.
        lanes: how many.
        when_full: what a writer does whose lane is full of rows that were not read.
    """

    kind = "queue"

    def _understand(self, segment: Segment) -> None:
        self.when_full: str = segment.description["when_full"]
        if self.when_full not in WHEN_FULL:
            raise ValueError(f"when_full: expected one of {', '.join(WHEN_FULL)}, got {self.when_full!r}")
        super()._understand(segment)
        self._lines = CursorLines(segment, self._geometry)
        self._readers: weakref.WeakSet[TrajectoryReader] = weakref.WeakSet()

    @classmethod
    def create(
        cls,
        spec: TransitionSpec,
        capacity: int,
        lanes: int = 1,
        *,
        when_full: Literal["wait", "drop_oldest", "drop_newest"] = "wait",
        name: str = "queue",
        path: str | os.PathLike[str] | None = None,
    ) -> TrajectoryQueue:
        """A new, empty queue.

        Args:
            spec: what a transition consists of.
            capacity: rows in all lanes together, from 3 a lane to 2^32 - 1; rounded down to a multiple of `lanes`,
                and of the interval at which the spec stores recurrent states.
            lanes: independent writers.
            when_full: "wait": writers wait for the reader; a writer runs ahead of it by a lane at most.
                "drop_oldest": writers never wait, and overwrite what was not read in time. "drop_newest": they
                never wait either, and leave out what finds no room; the row after a gap begins an episode.
            name: part of the segment's name in /dev/shm: letters, digits, "_" and ".".
            path: an ordinary file to hold the queue instead; it stays until `unlink`.

        Raises:
            ValueError, TypeError: an argument is out of range. SharedMemoryFull: there is no room for it.
        """
        lane_rows = cls._lane_rows(spec, capacity, lanes)
        if when_full not in WHEN_FULL:
            raise ValueError(f"when_full: expected one of {', '.join(WHEN_FULL)}, got {when_full!r}")
        if lane_rows < LEAST_ROWS:
            raise ValueError(f"capacity: expected at least {LEAST_ROWS * lanes}, 3 rows a lane, got {capacity}")
        return cls._create(spec, lanes, lane_rows, name, path, when_full=when_full)

    def writer(self, lane: int = 0, *, timeout: float | None = None) -> Writer:
        """The writing end of a lane, for this process alone until it closes it or dies.

        A successor goes on behind the last row; no batch's window crosses the seam. Add at most what the reader
        leaves of a lane at once: a longer `add_batch` is a ValueError that says how many rows that is. There is no
        such limit with "drop_oldest", short of a whole lane.

        Args:
            lane: which.
            timeout: with "wait", seconds that an add may wait for room; TimeoutError after them, with nothing
                written. None waits for ever: while there is no reader too, since one may come.

        Raises:
            LaneBusy: a writer of the lane lives. ValueError: there is no such lane, or the timeout is negative.
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
        pad: Literal["repeat", "zero"] = "repeat",
    ) -> TrajectoryReader:
        """The reading end, for this process alone until it closes it or dies; its successor goes on at the cursor.

        A batch holds one run of each lane, those of lower lanes first; the runs are as equal in length as what the
        lanes hold allows, and `batch.index` says which is whose. A lane that nobody writes to gives nothing, so a
        batch may wait for the others while some are full.

        A transition is delivered once its n steps are written; a successor with a longer stack may find frames of
        the first ones overwritten, which are then dropped. What is skipped between two that can be delivered keeps
        its room until the first of them is read: with writers that wait, end episodes by terminated or truncated
        rather than by `new_episode` at every other row.

        Args:
            batch_size: transitions of a batch, or unrolls.
            length: transitions of an unroll: obs becomes [B, T, ...], and so on, see Batch. Each begins where the
                last one of its lane stopped, and ends with its episode if that comes first; `batch.mask` is False
                behind it. A multiple of the interval at which the spec stores recurrent states. None: single
                transitions.
            stack: frames in each obs and next_obs; 1 leaves the stack axis out.
            n_step: rewards in each return, and steps to next_obs.
            gamma: discount of one step, from 0 to 1.
            pad: what stands before an episode's first frame: the first frame again, or zeros.

        Raises:
            LaneBusy: a reader of the queue lives.
            ValueError: an option is out of range, or a lane has too few rows for it: a reader and writers that both
                wait, one for a batch and the others for room, would wait for ever.
        """
        from ..transitions import Lanes
        from .reader import ReaderOptions, TrajectoryReader

        self._segment.check_open()
        lanes = Lanes(self._segment, self._lanes, self._geometry, self._layout, self.spec)
        reader = TrajectoryReader(lanes, ReaderOptions(batch_size, length, stack, n_step, gamma, pad))
        self._readers.add(reader)
        return reader

    @property
    def dropped(self) -> NDArray[np.int64]:
        """Transitions lost in each lane, int64 [lanes]: overwritten before they were read, or left out.

        Exact, as `len` is, as long as fewer than 2^32 are overwritten between two batches, and fewer than 2^32
        boundary rows are written to a lane; while others are at work it is that of a moment ago.
        """
        cursor, _, overwritten = self._counts()
        refused = np.array([self._lines.refused(lane) for lane in range(self.lanes)])
        dropped: NDArray[np.int64] = cursor[DROPPED] + overwritten + refused
        return dropped

    @property
    def skipped(self) -> NDArray[np.int64]:
        """Transitions of each lane that no batch could hold, int64 [lanes].

        Their episode does not go on behind them: their writer died or began another, or left out what followed. Or
        an unroll would have to begin with them, where no recurrent state is stored, since the rows before them were
        overwritten or read in another way.
        """
        self._segment.check_open()
        skipped: NDArray[np.int64] = self._lines.load()[SKIPPED]
        return skipped

    def __len__(self) -> int:
        """Transitions written and neither read nor overwritten, boundary rows not counted."""
        return int(self._counts()[1].sum())

    def close(self) -> None:
        """Closes its reader and writers and lets go of the memory; see `TransitionLanes.close`."""
        for reader in list(self._readers):
            reader.close()
        super().close()

    @classmethod
    def _slots(cls, description: dict[str, Any]) -> int:
        return 1 + int(description["lanes"])

    def _gate(self, lane: int) -> Gate:
        return QueueGate(self._segment, self._lanes, self._geometry, lane, self.when_full)

    def _counts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The cursor; of each lane's transitions behind it, those that are held and those that were overwritten."""
        self._segment.check_open()
        lanes = range(self.lanes)
        written = np.array([self._lanes.written(lane) for lane in lanes])
        held = np.array([self._lanes.transitions(lane) for lane in lanes])
        cursor = self._lines.load()  # last: what is read and overwritten meanwhile would count as dropped
        behind = np.maximum(0, written - cursor[PASSED])
        unread = np.minimum(behind, held)
        return cursor, unread, behind - unread
