"""cpprb's buffers for one process, with n-step returns, compression and files."""

import math
import os
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ..compressed_ring import CompressedRing
from ..ring import Rows, whole_number
from ..ring_lane import Path
from .base import EnvDict, RingBuffer, fields_of
from .files import File, load, save
from .nstep import NStep, names_of
from .prioritized import PrioritizedBuffer


class ReplayBuffer(RingBuffer):
    """A ring of transitions that only the process that made it can use.

    Args:
        size, env_dict, default_dtype: see MPReplayBuffer.
        next_of: a name or names of fields. For each field x, `add` takes and `sample` returns "next_x". Without Nstep,
            the ring does not store "next_x", but takes the value of x in the next row.
        stack_compress: a name or names of fields whose last axis is a stack of frames, the newest last. The ring stores
            each frame once.
        Nstep: a dict as in cpprb. "size" is n. "rew" names the fields to sum over n steps or until a step is done,
            discounted by "gamma" (default 0.99). "next" names the fields that a row stores with their value of n - 1
            steps later. env_dict must have a field "done".
        mmap_prefix: stores the rows in the ordinary file "<mmap_prefix>_<first field>.dat", which replaces an earlier
            buffer's file and stays after `close`. The file is a segment of marlcore, not an array.
        kwargs: ignored with a warning.

    Raises: ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the buffer.
        SegmentCorrupt: the file of mmap_prefix exists, and no buffer made it.
    """

    _free_until: float = math.inf

    def __init__(
        self,
        size: int,
        env_dict: EnvDict | None = None,
        *,
        next_of: Any = None,
        stack_compress: Any = None,
        default_dtype: DTypeLike | None = None,
        Nstep: Mapping[str, Any] | None = None,  # noqa: N803
        mmap_prefix: Path | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs:
            warnings.warn(f"{type(self).__name__}: ignores the arguments {', '.join(kwargs)}", stacklevel=2)
        fields = fields_of(env_dict or {}, default_dtype, self._own_fields)
        nexts = names_of("next_of", next_of, fields)
        stacks = names_of("stack_compress", stack_compress, fields)
        next_fields = {f"next_{name}": fields[name] for name in nexts}
        fields |= next_fields
        stored = {**fields, **self._own_fields}
        self._nstep = NStep(stored, Nstep) if Nstep else None
        if Nstep:  # the next value after n steps is not in the next row
            nexts, next_fields = (), {}
        if not isinstance(mmap_prefix, str | os.PathLike | None):
            raise TypeError(f"mmap_prefix: expected a path, got {mmap_prefix!r}")
        path = None if mmap_prefix is None else f"{os.fspath(mmap_prefix)}_{next(iter(stored), 'rows')}.dat"
        stacked = [name for name in stacks if name not in next_fields]
        super().__init__(CompressedRing(stored, whole_number("size", size, 1), stacked, nexts, path), fields)
        self._episode_len = 0

    def on_episode_end(self) -> None:
        """Ends the episode: adds the steps that Nstep holds back, with returns up to the last step."""
        if self._nstep is not None:
            self._store_complete(self._nstep, *self._nstep.end())
        self._episode_len = 0

    def get_current_episode_len(self) -> int:
        """Returns the number of transitions added since the last episode's end."""
        return self._episode_len

    def is_Nstep(self) -> bool:  # noqa: N802
        """Returns whether `add` computes n-step returns."""
        return self._nstep is not None

    def clear(self) -> None:
        """Deletes every transition, and the steps that Nstep holds back; the next row is added at position 0."""
        super().clear()
        self._episode_len = 0
        if self._nstep is not None:
            self._nstep.clear()

    def save_transitions(self, file: File, *, safe: bool = True) -> None:
        """Writes every transition to an .npz file of cpprb's format, which cpprb reads too.

        Args:
            file: a path, to which ".npz" is added where it is missing, or a binary file.
            safe: accepted for compatibility; the file is compressed in any case.
        """
        save(file, self.get_all_transitions(), self.is_Nstep())

    def load_transitions(self, file: File) -> None:
        """Adds the transitions of a file that marlcore or cpprb saved, but no more than the last `size` transitions.

        Files from untrusted sources are safe: reading one executes nothing in it.

        Raises:
            ValueError: the file has another format, or only one of file and buffer has n-step returns.
            KeyError: the file lacks a field. OSError: the file cannot be read.
        """
        values, summed = load(file)
        if summed != self.is_Nstep():
            raise ValueError(f"file: expected transitions with Nstep {self.is_Nstep()}, got Nstep {summed}")
        rows, steps = self._rows({name: array[-self.get_buffer_size() :] for name, array in values.items()})
        unset = {name: np.full(steps, np.nan, np.float32) for name in self._own_fields}
        self._store({**rows, **unset}, steps)

    def _append(self, rows: Rows, steps: int) -> int | None:
        if self._nstep is None:
            return self._store(rows, steps)
        rows, steps, waiting = self._nstep.add(rows)
        position = self._store_complete(self._nstep, rows, steps, waiting)
        return position if steps else None

    def _store_complete(self, nstep: NStep, rows: Rows, steps: int, waiting: Rows) -> int:
        writer = self._ring.writer
        end = writer.next + steps
        try:
            position = self._store(rows, steps)
        finally:
            if writer.next == end:  # also if an interrupt came after the rows
                nstep.waiting = waiting
        return position

    def _store(self, rows: Rows, steps: int) -> int:
        """Adds any number of rows, in pieces of at most the ring's size; returns the first row's position."""
        window, size = self._ring.window(), self._ring.capacity
        for start in range(0, steps, size):
            piece = rows if steps <= size else {name: values[start : start + size] for name, values in rows.items()}
            end = min(start + size, steps)
            if window.hi + end > self._free_until:
                self._before_overwriting()
            self._ring.append(piece, end - start)
        self._episode_len += steps
        return window.head

    def _before_overwriting(self) -> None:
        """Is called before rows with tickets from `_free_until` on are added."""


class PrioritizedReplayBuffer(PrioritizedBuffer, ReplayBuffer):
    """A ReplayBuffer sampled by priorities; it also takes `alpha` and `eps` of MPPrioritizedReplayBuffer.

    With `check_for_update`, `update_priorities` skips a position if its row was overwritten during or after the last
    `sample`.
    """

    def __init__(
        self, size: int, env_dict: EnvDict | None = None, *, check_for_update: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(size, env_dict, **kwargs)
        self._keeps_new = bool(check_for_update)
        self._free_until = self._ring.capacity

    def sample(self, batch_size: int, beta: float = 0.4) -> Rows:
        """Does `MPPrioritizedReplayBuffer.sample`; an empty buffer returns zeros with weights of 1, as in cpprb."""
        if self.get_stored_size():
            return super().sample(batch_size, beta)
        count = whole_number("batch_size", batch_size, 0)
        sample: Rows = {name: field.zeros(count) for name, field in self._fields.items()}
        return {**sample, "weights": np.ones(count, np.float32), "indexes": np.zeros(count, np.uint64)}

    def _before_overwriting(self) -> None:
        # A priority that is overwritten may be the greatest, so it is read before.
        self._free_until = self._caught_up().window.hi + self._ring.capacity


def create_buffer(
    size: int, env_dict: EnvDict | None = None, *, prioritized: bool = False, **kwargs: Any
) -> ReplayBuffer:
    """Creates a ReplayBuffer or, if `prioritized`, a PrioritizedReplayBuffer with these arguments."""
    return (PrioritizedReplayBuffer if prioritized else ReplayBuffer)(size, env_dict, **kwargs)
