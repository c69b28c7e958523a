"""The replay buffer: lanes of transitions in one segment, written by actors and sampled by learners."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

from ..interfaces import Gate
from ..memory import Segment
from ..spec import TransitionSpec
from ..transitions import TransitionLanes, Writer
from .gates import SLOTS, WriteGate
from .limiter import RateLimiter
from .snapshot import Stateful, copy_segment, read_state, save_segment

if TYPE_CHECKING:
    from .prioritized import Prioritized
    from .sampler import Sampler, Sequence

__all__ = ["ReplayBuffer"]


class ReplayBuffer(TransitionLanes):
    """Transitions in shared memory: one writer a lane, any number of samplers, no locks between them.

    Make it with `create`, hand it (or its `handle`) to other processes, and use it there: passing a ReplayBuffer to
    a process attaches to the same memory; after a fork, attach to the handle. Rows of one lane follow one another in
    time, so give each environment copy of each actor a lane of its own.

    Attributes:
        spec: what a transition consists of.
        capacity: rows in all lanes together; a boundary row (an episode's final_obs) takes one too.
        lanes: how many.
        limiter: what keeps its writers and samplers in step; None when nothing does.
    """

    kind = "replay"

    def _understand(self, segment: Segment) -> None:
        self.limiter = RateLimiter.of(segment)
        super()._understand(segment)

    @classmethod
    def create(
        cls,
        spec: TransitionSpec,
        capacity: int,
        lanes: int = 1,
        *,
        limiter: RateLimiter | None = None,
        name: str = "replay",
        path: str | os.PathLike[str] | None = None,
    ) -> ReplayBuffer:
        """A new, empty replay.

        Args:
            spec: what a transition consists of.
            capacity: rows in all lanes together, from `lanes` to 2^32 - 1; rounded down to a multiple of `lanes`,
                and of the interval at which the spec stores recurrent states.
            lanes: independent writers at most.
            limiter: makes samplers and writers, in whatever process, wait for one another; None lets all go on.
            name: part of the segment's name in /dev/shm: letters, digits, "_" and ".".
            path: an ordinary file to hold the replay instead, for one larger than memory; it stays until `unlink`.

        Raises:
            ValueError, TypeError: an argument is out of range. SharedMemoryFull: there is no room for it.
        """
        lane_rows = cls._lane_rows(spec, capacity, lanes)
        if limiter is not None and not isinstance(limiter, RateLimiter):
            raise TypeError(f"limiter: expected a RateLimiter or None, got {limiter!r}")
        if limiter is not None and lane_rows < 3:
            raise ValueError(f"capacity: expected at least {3 * lanes} with a limiter, 3 rows a lane, got {capacity}")
        return cls._create(spec, lanes, lane_rows, name, path, limiter=limiter and limiter.to_dict())

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        spec: TransitionSpec | None = None,
        *,
        name: str = "replay",
        into: str | os.PathLike[str] | None = None,
    ) -> ReplayBuffer:
        """A new replay with what `save` wrote: the same rows under the same tickets, which writers go on from.

        The save stays as it is. To use a save in place, as a replay in a file, `attach` to its path.

        Args:
            path: the save, of this user alone (mode 0600, as `save` makes it).
            spec: what the caller expects to be in it.
            name: part of the new segment's name in /dev/shm.
            into: an ordinary file that does not exist yet, to hold the replay instead.

        Raises:
            SegmentNotFound: nothing is there. SegmentCorrupt: it is no save of a replay, or a damaged one.
            LayoutMismatch: the save has another spec. SharedMemoryFull: there is no room for it.
        """
        with cls.attach(Path(path).resolve(), spec) as saved:
            return cls(copy_segment(saved._segment, saved._lanes, saved._geometry, name, into))

    def save(self, path: str | os.PathLike[str], sampler: Stateful | None = None) -> None:
        """Writes what the replay holds now to a file, on disk when this returns, while writers go on.

        All lanes are cut at one moment, which is one look at their counters; nothing that is committed later is in
        the file. A writer that laps while its lane is copied takes the lane's oldest rows from the file, as it
        takes them from samplers. No row is torn.

        The file replaces an earlier save whole or not at all, whatever dies in between; the two lie side by side
        until then. It is as long as the replay, and is one: `attach` opens it in place.

        Args:
            path: the file; its directory exists.
            sampler: whose `state_dict()`, such as priorities, goes into the same file; see `sampler_state`.

        Raises:
            SharedMemoryFull: the file system has no room. ValueError, TypeError: path is a directory or the replay's
            own file, or the sampler's state is no arrays of numbers. In each case an earlier save stays.
        """
        self._segment.check_open()
        # First the sampler: it may not know rows that are committed later than the lanes are cut.
        state = None if sampler is None else sampler.state_dict()
        save_segment(self._segment, self._lanes, self._geometry, path, state)

    @property
    def sampler_state(self) -> dict[str, NDArray[Any]] | None:
        """A copy of the sampler's state that was saved with this replay, for `load_state_dict`; None without one.

        Raises: SegmentCorrupt: it was damaged.
        """
        self._segment.check_open()
        return read_state(self._segment, self._geometry.nbytes)

    def writer(self, lane: int = 0, *, shared: bool = False, timeout: float | None = None) -> Writer:
        """The writing end of a lane, for this process alone until it closes it or dies.

        A successor goes on behind the last row; nothing is sampled across the seam.

        A shared lane has any number of writers, in any processes. Each holds a kernel lock during an add alone, which
        ends with its process: a writer that is killed inside an add blocks nobody, one that is stopped there blocks
        the others until it goes on or dies. Rows of different writers do not follow one another, so the spec must
        store next_obs.

        Args:
            lane: which.
            shared: let other writers have the lane too, who all must ask for it so.
            timeout: seconds that an add may wait for room in a replay with a limiter, and for its turn in a shared
                lane; TimeoutError after them, with nothing written. None waits for ever.

        Raises:
            LaneBusy: a writer of the lane lives, and the two do not both share it.
            ValueError: there is no such lane, the spec of a shared one has no next_obs, or the timeout is negative.
        """
        self._segment.check_open()
        if shared and not self.spec.next_obs:
            raise ValueError("shared: expected False, since this spec's rows follow one another; use next_obs=True")
        return self._open_writer(lane, timeout, shared)

    def sampler(
        self,
        batch_size: int,
        *,
        stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        seed: int | None = None,
        pad: Literal["repeat", "zero"] = "repeat",
        min_size: int | None = None,
        prioritized: Prioritized | None = None,
        sequence: Sequence | None = None,
    ) -> Sampler:
        """Draws batches; any number of samplers may live at once, in any process, each with its own priorities.

        Args:
            batch_size: rows of a batch.
            stack: frames in each obs and next_obs; 1 leaves the stack axis out.
            n_step: rewards in each return, and steps to next_obs.
            gamma: discount of one step, from 0 to 1.
            seed: makes the draws reproducible.
            pad: what stands before an episode's first frame: the first frame again, or zeros.
            min_size: transitions to hold before anything is drawn; batch_size when not given. Where some lanes are
                never written to, the others must have room for them.
            prioritized: draws in proportion to priorities instead of uniformly.
            sequence: draws windows of consecutive transitions: obs becomes [B, T, ...], and so on, see Batch.

        Raises: ValueError, TypeError: an option is out of range, or what it reads at once is longer than a lane.
        """
        from ..transitions import Lanes
        from .sampler import Sampler, SamplerOptions

        self._segment.check_open()
        options = SamplerOptions.of(batch_size, stack, n_step, gamma, seed, pad, min_size, prioritized, sequence)
        return Sampler(Lanes(self._segment, self._lanes, self._geometry, self._layout, self.spec), options)

    def __len__(self) -> int:
        """Transitions held, boundary rows not counted.

        Raises: SegmentCorrupt: more than there are rows. MarlcoreError: writers lapped each look at them.
        """
        self._segment.check_open()
        return self._lanes.all_transitions()

    @classmethod
    def _slots(cls, description: dict[str, Any]) -> int:
        return SLOTS if description["limiter"] else 0

    def _gate(self, lane: int) -> Gate | None:
        return WriteGate.of(self._segment, self._lanes, self._geometry)
