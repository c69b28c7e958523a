"""The memories of an experiment: rings in shared memory in the place of sorrel's buffers, and their way back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...spec import Field
from .buffer import Batch, Buffer

_COLUMNS = {"obs": "states", "action": "actions", "reward": "rewards", "done": "dones"}


def rings_for(memory: Any, copies: int) -> list[Buffer]:
    """A ring for each copy of the world, with equal parts of the memory's capacity; the first one has its rows.

    A marlcore Buffer is its own ring, if there is one copy.
    """
    if isinstance(memory, Buffer) and copies == 1:
        memory.release()
        return [memory]
    extras = {name: Field(array.shape[1:], str(array.dtype)) for name, array in memory.extra_data.items()}
    n_frames = int(memory.n_frames)
    capacity = max(int(memory.capacity) // copies, n_frames + 2)
    rings = [Buffer(capacity, memory.obs_shape, n_frames, **extras) for _ in range(copies)]
    _fill(rings[0], memory)
    return rings


def _fill(ring: Buffer, memory: Any) -> None:
    """Adds the memory's newest rows; at equal capacities each row keeps its position."""
    idx, size = int(memory.idx), int(memory.size)
    parts = [np.arange(idx)]
    if idx < size:  # sorrel's size counts `add_empty` as one, so it is at most idx before the ring is full
        parts.insert(0, np.arange(idx if ring.capacity > memory.capacity else 0, memory.capacity))
    for positions in parts:
        positions = positions[-ring.capacity :]
        if len(positions):
            ring.put_rows(_rows_of(memory, positions), size)
    ring.release()


def _rows_of(memory: Any, positions: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    columns = {name: getattr(memory, theirs) for name, theirs in _COLUMNS.items()}
    return {name: np.asarray(array)[positions] for name, array in {**columns, **memory.extra_data}.items()}


def give_back(rings: Sequence[Buffer], memory: Any) -> None:
    """Writes the rings' rows into the caller's own buffer, the newest ones if it has room for fewer.

    Of several rings the rows of one copy follow one another.
    """
    if memory is rings[0]:
        return
    if len(rings) == 1 and rings[0].capacity == memory.capacity:
        columns, idx, size = _snapshot(rings[0]), rings[0].idx, rings[0].size
    else:
        parts = [_in_order(ring) for ring in rings]
        columns = {name: np.concatenate([part[name] for part in parts])[-memory.capacity :] for name in parts[0]}
        size = len(columns["states"])
        idx = size % memory.capacity
    if isinstance(memory, Buffer):
        memory.clear()
        if size:
            memory.put_rows({**columns, **{name: columns[theirs] for name, theirs in _COLUMNS.items()}}, size)
            memory.release()
        return
    for name, rows in columns.items():
        target = memory.extra_data[name] if name in memory.extra_data else getattr(memory, name)
        target[: len(rows)] = rows
    memory.idx, memory.size = idx, size


def _snapshot(ring: Buffer) -> dict[str, NDArray[Any]]:
    return {**{theirs: getattr(ring, theirs) for theirs in _COLUMNS.values()}, **ring.extra_data}


def _in_order(ring: Buffer) -> dict[str, NDArray[Any]]:
    """A ring's rows, oldest first."""
    return {name: rows[ring.positions()] for name, rows in _snapshot(ring).items()}


class LearnersMemory:
    """A model's memory in its learner: it samples what the actor adds, from the rings of all copies of the world.

    One ring draws what sorrel's buffer draws. Of several, each window that can be drawn is equally likely. `len` is
    such that the condition of sorrel's models for a batch, `len(memory) >= batch_size + n_frames + 1`, holds
    exactly if a batch can be drawn.
    """

    def __init__(self, rings: Sequence[Buffer]) -> None:
        self._rings = rings
        self._aside = False
        self.obs_shape = rings[0].obs_shape
        self.n_frames = rings[0].n_frames
        self.capacity = sum(ring.capacity for ring in rings)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Within the block, nothing is added or cleared: a model's hooks run in the actor too, where they do it."""
        self._aside = True
        try:
            yield
        finally:
            self._aside = False

    def sample(self, batch_size: int) -> Batch:
        """See `Buffer.sample`."""
        if len(self._rings) == 1:
            return self._rings[0].sample(batch_size)
        windows = [self._windows(ring) for ring in self._rings]
        if batch_size > sum(windows):
            raise ValueError(f"batch_size: expected at most {sum(windows)} windows of all copies, got {batch_size}")
        drawn = np.random.choice(sum(windows), batch_size, replace=False)
        shares = np.bincount(np.searchsorted(np.cumsum(windows), drawn, side="right"), minlength=len(windows))
        parts = [ring.sample(int(share)) for ring, share in zip(self._rings, shares, strict=True) if share]
        states, actions, rewards, next_states, dones, valid = (np.concatenate(one) for one in zip(*parts, strict=True))
        return states, actions, rewards, next_states, dones, valid

    def _windows(self, ring: Buffer) -> int:
        return max(0, ring.size - self.n_frames - 1)

    def add(self, *row: Any, **extras: Any) -> None:
        """Raises LaneBusy: only the actor adds."""
        if not self._aside:
            self._rings[0].add(*row, **extras)

    def add_empty(self) -> None:
        """Raises LaneBusy: only the actor adds."""
        if not self._aside:
            self._rings[0].add_empty()

    def add_from_buffer(self, buffer: Any) -> None:
        """Raises LaneBusy: only the actor adds."""
        if not self._aside:
            self._rings[0].add_from_buffer(buffer)

    def clear(self) -> None:
        """Deletes every row, for the actor too."""
        if not self._aside:
            for ring in self._rings:
                ring.clear()

    @property
    def size(self) -> int:
        return len(self)

    def __len__(self) -> int:
        if len(self._rings) == 1:
            return len(self._rings[0])
        windows = sum(self._windows(ring) for ring in self._rings)
        return windows + self.n_frames + 1 if windows else 0

    def __getitem__(self, idx: int | slice) -> Any:
        """See `Buffer.__getitem__`."""
        return self.__getattr__("__getitem__")(idx)

    def __getattr__(self, name: str) -> Any:
        """Everything else that one ring has; several rings have no common positions."""
        rings = self.__dict__.get("_rings", ())
        if len(rings) == 1:
            return getattr(rings[0], name)
        raise AttributeError(f"memory: expected a name that the memory of {len(rings)} copies has, got {name!r}")
