"""The replay buffer: lanes of transitions in one segment; actors write them and learners sample them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import as_path, brief, check_type
from ..fixed import fixed
from ..memory import LINE, Segment, claim_clearing
from ..observations import Pad
from ..spec import Sequence, TransitionSpec
from ..transitions import Batch, Durable, LaneView, Layout, TransitionLanes, Window, Writer, count_transitions
from .episodes import RecordedEpisodes, rows_taken
from .hindsight import Hindsight
from .kept_state import KeptState, unlink_states
from .prioritized import Prioritized
from .rate_limiter import SLOTS, RateLimiter, SampleGate, WriteGate
from .reading import RowReader, read_batches, read_episodes, read_rows
from .row_sampler import RowSampler
from .sampler import Sampler
from .saving import UNLIMITED, Stateful, copy_segment, read_state, save_segment


@fixed()
class ReplayBuffer(TransitionLanes):
    """Transitions in shared memory: one writer per lane, any number of samplers, no locks between them.

    Make it with `create` and pass it, or its `handle`, to other processes: unpickling a ReplayBuffer attaches to the
    same memory; a forked child's first use does so too. The rows of a lane are consecutive in time, so give each
    environment copy of each actor its own lane.

    Attributes:
        spec: the fields of a transition.
        capacity: rows in all lanes together; a boundary row (an episode's final_obs) takes one too.
        lanes: the number of lanes.
        limiter: the rate limiter between writers and samplers; None if neither waits.
        durable: how the replay survives the end of the machine; None if it need not.
        recovered: what was left of a durable replay when the machine stopped, if this process is the first to attach
            since then; otherwise None.
    """

    kind = "replay"
    _attaches_anew = True
    _keep = "keep its rows by replay.save(path)"

    def _understand(self, segment: Segment) -> None:
        self.limiter = RateLimiter.of(segment)
        self._readers: dict[Any, RowReader] = {}
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
        durable: Durable | None = None,
    ) -> ReplayBuffer:
        """Creates an empty replay.

        Args:
            spec: the fields of a transition.
            capacity: rows in all lanes together, from 2 per lane (1 with next_obs) to 2^32 - 1; rounded down to a
                multiple of `lanes`, and of the interval at which the spec stores recurrent states.
            lanes: the largest number of independent writers.
            limiter: makes samplers and writers, in any process, wait for each other; None lets both run free.
            name: part of the segment's name in /dev/shm: letters, digits, "_" and ".".
            path: an ordinary file that holds the replay, which may be larger than memory; it stays until `unlink`.
            durable: keeps the file's rows through power cuts, up to a watermark; see docs/reliability.md. The path must
                be on a file system that keeps what it has synced.

        Raises:
            ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the replay.
        """
        lane_rows = cls._lane_rows(spec, capacity, lanes)
        check_type("limiter", limiter, RateLimiter, or_none=True)
        if limiter is not None and lane_rows < 3:
            raise ValueError(f"capacity: expected at least {3 * lanes} for a limiter, 3 rows a lane, got {capacity}")
        if lane_rows < 2 and not spec.next_obs:
            least = f"at least {2 * lanes}, 2 rows a lane for a truncated transition and its final_obs"
            raise ValueError(f"capacity: expected {least}, got {capacity}")
        return cls._create(spec, lanes, lane_rows, name, path, durable, limiter=limiter and asdict(limiter))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        spec: TransitionSpec | None = None,
        *,
        name: str = "replay",
        into: str | os.PathLike[str] | None = None,
        limited: bool = True,
    ) -> ReplayBuffer:
        """Returns a new replay with a save's rows, under the same tickets (row numbers); new writers append to them.

        The save stays unchanged. To use a save in place, as a replay in a file, `attach` to its path.

        Args:
            path: the save, readable by this user alone (mode 0600, as `save` makes it).
            spec: the spec that the caller expects.
            name: part of the new segment's name in /dev/shm.
            into: an ordinary file for the replay, which must not exist yet.
            limited: keep the save's limiter, which may expect further rows before the next batch. False drops the
                limiter, so that a replay saved by a run gives batches at once.

        Raises:
            SegmentNotFound: the file does not exist. SegmentCorrupt: the file is no save of a replay, or its checksum
                is wrong. Replays made in files and saves that were used in place have no checksum: they are loaded
                without a check, and without rows that their writers overwrite meanwhile.
            LayoutMismatch: the save has another spec. SharedMemoryFull: no room for the replay.
        """
        with cls.attach(as_path("path", path).resolve(), spec) as saved:
            saved._segment.verify(waits=LINE)
            return cls(copy_segment(saved._mapped, name, into, limited))

    @classmethod
    def from_episodes(
        cls,
        episodes: Any,
        spec: TransitionSpec | None = None,
        *,
        action_space: Any = None,
        capacity: int | None = None,
        name: str = "replay",
        path: str | os.PathLike[str] | None = None,
    ) -> ReplayBuffer:
        """Returns a new replay of one lane, filled with recorded episodes; each is written by one `Writer.add_batch`.

        An episode of T steps is a dict of arrays, whose other entries are ignored:

        - `obs`: [T, ...], or [T + 1, ...] with the observation after the last action. If the spec has several fields
          of observations, `obs` is a dict of arrays, or a tuple whose parts the spec or Minari's space names.
        - `final_obs` [...] or `next_obs` [T, ...]: the observation after the last action, if `obs` has T rows
        - `action`, `reward` and the extras of the spec: [T, ...]
        - `terminated`, `truncated`: a bool, or bool [T]

        The names of Minari and D4RL work too, such as `observations` and `timeouts`. An episode that does not terminate
        counts as truncated, and needs the observation after its last action. If an episode lacks recurrent states of
        the spec (`every` above 1), these are set to 0.

        Args:
            episodes: an iterable of episodes, a Minari dataset, a dict, or the path of a .npz file. The arrays of a
                dict or file hold all episodes one after another, with a `final_obs` for each episode that does not
                terminate; in a file, the parts of an obs have names such as "obs.position".
            spec: the fields of a transition; None: obs and action in the first episode's shapes and dtypes, no extras.
            action_space: a Gymnasium space that must contain all actions. From actions of a Discrete or MultiDiscrete,
                the space's start is subtracted, as in training. None: the space of a Minari dataset, if it has a start;
                otherwise actions are stored unchanged, without a check of their range.
            capacity: rows, one for each transition and one for each episode that does not terminate. If given, episodes
                are written as they are read; None reads all of them first, and makes the replay just large enough.
            name, path: as for `create`.

        Raises:
            ValueError, TypeError: an episode's field is missing, not finite, or of a wrong shape, dtype or range (the
                message gives the episode's number); there is no episode; or the rows exceed the capacity.
                SharedMemoryFull: no room for the replay. After an error there is no replay, and no file of one.
        """
        recorded = RecordedEpisodes(episodes, spec, action_space)
        read = iter(recorded)
        batches = [*(read if capacity is None else islice(read, 1))]
        if not batches or recorded.spec is None:
            raise ValueError(f"episodes: expected at least one, got none in {brief(episodes)}")
        every = recorded.spec.state_every
        rows = max(2, sum(map(rows_taken, batches))) if capacity is None else capacity
        replay = cls.create(recorded.spec, -(-rows // every) * every, name=name, path=path)
        try:
            with replay.writer() as writer:
                left = replay.capacity
                for index, batch in enumerate(chain(batches, read)):
                    left -= rows_taken(batch)
                    if left < 0:
                        least = f"at least {replay.capacity - left} rows for episodes 0 to {index}"
                        raise ValueError(f"capacity: expected {least}, got {capacity}")
                    writer.add_batch(**batch)
        except BaseException:
            replay.unlink()
            replay.close()
            raise
        return replay

    def save(self, path: str | os.PathLike[str], sampler: Stateful | None = None) -> None:
        """Writes the replay's current content to a file, while writers continue; at return, the file is on disk.

        The counters of all lanes are read at one moment; later rows are not in the file. If a writer overwrites its
        lane's oldest rows while they are copied, the file lacks these rows. No row is torn.

        The file atomically replaces an earlier save, even if a process dies meanwhile; until then, both take space. The
        file is as long as the replay, and is itself a replay: `attach` opens it in place.

        Args:
            path: the file; its directory must exist.
            sampler: a sampler whose `state_dict()`, such as priorities, is saved in the same file; see `sampler_state`.

        Raises:
            SharedMemoryFull: the file system has no room. ValueError, TypeError: path is a directory or the replay's
            own file, or the sampler's state is not arrays of numbers. After an error, an earlier save is intact.
        """
        self._save(path, sampler, None)

    def _save(self, path: str | os.PathLike[str], sampler: Stateful | None, check: Callable[[], None] | None) -> None:
        """Saves as `save` does; `check`, which may raise, is called just before the earlier save is replaced."""
        self._segment.check_open()
        if sampler is not None and not callable(getattr(sampler, "state_dict", None)):
            raise TypeError(f"sampler: expected a sampler with a state_dict, got {brief(sampler)}")
        # The lanes' counters are read after this, so that the save has every row that the sampler's state knows.
        state = None if sampler is None else sampler.state_dict()
        save_segment(self._mapped, path, state, check)

    @property
    def sampler_state(self) -> dict[str, NDArray[Any]] | None:
        """Returns a copy of the sampler's state saved with this replay, for `load_state_dict`; None if there is none.

        Raises: SegmentCorrupt: the state is damaged.
        """
        self._segment.check_open()
        return read_state(self._mapped)

    def writer(self, lane: int = 0, *, shared: bool = False, timeout: float | None = None) -> Writer:
        """Returns a lane's writer; unless it is shared, the lane has no other writer until this one is closed or dies.

        The next writer of the lane continues after the last row; no sample spans the rows of two writers.

        A shared lane has any number of writers in any processes. Each holds a kernel lock only during an add, and the
        kernel frees it when the process dies. So a writer killed in an add blocks no other; a writer stopped in an add
        blocks the others until it resumes or dies. Rows of different writers are not consecutive, so the spec must
        store next_obs.

        Args:
            lane: the lane's index.
            shared: allow other writers on the lane; they must all be shared too.
            timeout: seconds that an add may wait, for room if there is a limiter and for its turn in a shared lane.
                After that, the add raises TimeoutError and writes nothing. None waits for ever.

        Raises:
            LaneBusy: the lane has a living writer, and not both writers are shared.
            ValueError: the lane does not exist, a shared lane's spec has no next_obs, or the timeout is negative.
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
        pad: Pad = "repeat",
        min_size: int | None = None,
        prioritized: Prioritized | None = None,
        sequence: Sequence | None = None,
        lanes: range | None = None,
        hindsight: Hindsight | None = None,
        layout: Layout | None = None,
        replace: bool = True,
        name: str | None = None,
    ) -> Sampler:
        """Returns a sampler of batches. Any number may live at once, in any process, each with its own priorities.

        Args:
            batch_size: rows of a batch.
            stack: frames in each obs and next_obs; 1 leaves the stack axis out.
            n_step: rewards in each return, and steps to next_obs.
            gamma: discount of one step, from 0 to 1.
            seed: makes the draws reproducible.
            pad: the padding before an episode's first frame: "repeat" repeats that frame, "zero" uses zeros.
            min_size: transitions that the replay must hold before a draw; batch_size by default. If some lanes are
                never written, the others must have room for `min_size` transitions.
            prioritized: draws in proportion to priorities instead of uniformly.
            sequence: draws windows of consecutive transitions: obs becomes [B, T, ...], and so on; see Batch.
            lanes: consecutive lanes, the only ones to draw from; None draws from all. A limiter counts all lanes.
            hindsight: gives most rows goals that their episodes achieved. It needs n_step=1 and no sequences, since the
                actions of later steps were chosen for the original goal.
            layout: "separate": obs and next_obs are contiguous arrays, aligned to 64 bytes. "shared": they are views
                of one block that has each frame once, which is less to copy for stacks and sequences. None: separate
                without stack and sequence, where that costs nothing; otherwise shared.
            replace: whether a batch may have a row twice. False: a batch's transitions, or sequences, are all
                different, and each set of them is equally likely; not with priorities.
            name: for a durable replay: the sampler continues where the last sampler of this name stopped, with its
                generator, its count of batches for beta, and its priorities. If that sampler was killed or dropped,
                these may lack its last `every_s` seconds of drawing.

        Raises:
            ValueError, TypeError: an option is out of range, one draw would read more rows than a lane has, or a batch
                would take more bytes than the machine has memory. Or the last sampler of this name
                differs: only one of the two has priorities, or both have, with different lanes, exponents or windows.
            LaneBusy: a living process has a sampler of this name.
        """
        view, window = self.view(lanes), Window(stack, n_step, gamma, pad, sequence, layout)
        rows = RowSampler(view, window, batch_size, min_size, prioritized, seed, hindsight, replace)
        most = view.geometry.lanes * view.geometry.capacity
        if not replace and rows.batch_size > most:
            raise ValueError(f"batch_size: expected at most {most} rows, since no row comes twice, got {batch_size}")
        kept = None if name is None else self._kept_state(name, view, rows)
        return Sampler(rows, SampleGate.of(view, rows.batch_size), kept=kept)

    def _kept_state(self, name: str, view: LaneView, rows: RowSampler) -> KeptState:
        if self._durability is None:
            raise ValueError(f"name: expected None, since this replay is not durable, got {brief(name)}")
        kept = KeptState(name, view, self._durability, rows)
        self._ends.add(kept)
        return kept

    def read(
        self,
        index: ArrayLike,
        *,
        missing: Literal["raise", "skip"] = "raise",
        stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        pad: Pad = "repeat",
        sequence: Sequence | None = None,
        lanes: range | None = None,
        layout: Layout | None = None,
    ) -> Batch:
        """Returns a copy of chosen rows, in the order of `index`, in which a row may come several times.

        Args:
            index: integers (n,), such as `batch.index`. The row that a writer added to a lane under a ticket has the
                index ticket * replay.lanes + lane. In a batch of a Mixture of m replays, a row of source k is
                the row index // m of replays[k].
            missing: what to do with rows that the replay does not hold whole, with their stacks and next rows: "raise"
                an error, or "skip" them; `batch.index` lists the rows returned. Writers may have overwritten a row
                since its index was given, and the newest row of an unfinished episode has no next row yet.
            stack, n_step, gamma, pad, sequence, layout: as for `sampler`.
            lanes: the lanes of the sampler that gave the index, if it was made with `lanes`.

        Raises: NotHeld (an IndexError): a row is missing. ValueError, TypeError: an option is out of range, or `index`
            is not integers (n,).
        """
        window = Window(stack, n_step, gamma, pad, sequence, layout)
        return read_rows(self.view(lanes), window, index, missing, self._readers)

    def batches(
        self,
        batch_size: int,
        *,
        stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        pad: Pad = "repeat",
        lanes: range | None = None,
        layout: Layout | None = None,
    ) -> Iterator[Batch]:
        """Returns an iterator over all transitions that the replay holds now, each once; the last batch may be shorter.

        Each lane's transitions come oldest first; a batch takes about as many from each lane. Writers may continue:
        their new rows are not read, and rows that they overwrite before these are read are left out. What a sampler
        with these options could not draw is left out too, such as the newest row of an unfinished episode.

        Args:
            batch_size: rows of a batch.
            stack, n_step, gamma, pad, lanes, layout: as for `sampler`.

        Raises: ValueError, TypeError: an option is out of range. While iterating: ClosedError: the replay was closed.
            MarlcoreError: writers overwrote every copy for 10 seconds.
        """
        return read_batches(self.view(lanes), Window(stack, n_step, gamma, pad, layout=layout), batch_size)

    def episodes(
        self,
        *,
        stack: int = 1,
        n_step: int = 1,
        gamma: float = 0.99,
        pad: Pad = "repeat",
        lanes: range | None = None,
        layout: Layout | None = None,
    ) -> Iterator[Batch]:
        """Returns an iterator over the whole episodes that the replay holds now, the oldest of all lanes first.

        Each is a batch of the episode's transitions in order. An episode is whole if it has ended and its first row is
        still held. Writers may continue: new episodes are not read, and an episode is left out if they overwrite one
        of its rows first.

        Args:
            stack, n_step, gamma, pad, lanes, layout: as for `sampler`.

        Raises: ValueError, TypeError: an option is out of range, or the spec has next_obs, so rows do not follow
            one another. While iterating: ClosedError: the replay was closed.
        """
        return read_episodes(self.view(lanes), Window(stack, n_step, gamma, pad, layout=layout))

    def view(self, lanes: range | None = None) -> LaneView:
        """Returns a view of consecutive lanes, by default of all. Raises ValueError if some of them do not exist."""
        self._segment.check_open()
        if lanes is None:
            return self._mapped
        consecutive = isinstance(lanes, range) and len(lanes) and lanes.step == 1
        if not consecutive or not self._has_lane(lanes[0]) or not self._has_lane(lanes[-1]):
            raise ValueError(f"lanes: expected a range within 0 to {self.lanes - 1}, got {lanes}")
        return self._mapped.of(self._mapped.geometry.part(lanes))

    def clear(self) -> None:
        """Hides all rows written so far from every process; writers continue meanwhile.

        Every lane then begins anew: `len` is 0, and no sampler, reader or save sees a row from before the call, or a
        stack, sequence or episode that begins with such a row. Samplers start anew at their next draw: they forget all
        priorities, and wait for `min_size` transitions again. Batches that a Prefetch holds ready are dropped by its
        own `clear`. A limiter keeps its counts of rows inserted and drawn. For a durable replay, the change is on disk
        when the call returns.

        Any process may call it; calls of several processes take turns. `Sampler.clear` affects one sampler alone.

        Raises: MarlcoreError: this process only watches the replay. SegmentCorrupt: a lane's counters are damaged.
        """
        with claim_clearing(self._segment, self._mapped.geometry) as held:
            self._mapped.native.clear(*([] if self.durable is None else [held.sync]))

    def __len__(self) -> int:
        """Counts the transitions held, without boundary rows.

        Raises: SegmentCorrupt: the count exceeds the rows. MarlcoreError: writers overwrote rows in every attempt.
        """
        self._segment.check_open()
        native = self._mapped.native
        if not native.cleared()[0]:
            return native.all_transitions()
        lo, hi = np.zeros((2, self.lanes), np.int64)
        return count_transitions(self._mapped, lo, hi, native.windows(lo, hi))

    def unlink(self) -> None:
        """Removes the segment's name, and the files of a durable replay's samplers; other processes keep the memory."""
        removed = self._segment.unlink()
        if self._durability is not None and (removed or not os.path.lexists(self._durability.path)):
            unlink_states(self._durability.path)

    @classmethod
    def _slots(cls, description: dict[str, Any]) -> int:
        return SLOTS if description["limiter"] or description.get(UNLIMITED) else 0

    def _gates(self, lanes: list[int]) -> WriteGate | None:
        return None if self.limiter is None else WriteGate(self._mapped, self.limiter)
