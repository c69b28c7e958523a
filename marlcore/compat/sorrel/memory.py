"""The memories of an experiment: rings in shared memory replace sorrel's buffers, which get the rows at the end."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ...spec import Field
from ...weights import ParameterStore
from .buffer import Batch, Buffer, Sequences, columns_of
from .options import ROLLOUTS

Drawn = TypeVar("Drawn", bound=tuple[Any, ...])
_WRITES = ("add", "add_empty", "add_from_buffer", "clear")


def is_rollout(memory: Any) -> bool:
    return type(memory).__name__ in ROLLOUTS


def rollout_of(memory: Any) -> dict[str, NDArray[Any]]:
    """Returns the memory's arrays by name, padded to its capacity, and "counts": idx, size and the arrays' lengths."""
    parts = {name: array for name, array in vars(memory).items() if isinstance(array, np.ndarray)}
    rollout = {"counts": np.array([memory.idx, memory.size, *map(len, parts.values())])}
    for name, array in parts.items():
        rollout[name] = np.zeros((memory.capacity, *array.shape[1:]), array.dtype)
        rollout[name][: len(array)] = array
    return rollout


def take_rollout(store: ParameterStore, memory: Any) -> None:
    """Copies the newest published rollout into the memory, if there is one."""
    if not store.version:
        return
    rollout = rollout_of(memory)
    store.subscriber(rollout).pull()
    memory.idx, memory.size, *lengths = rollout.pop("counts").tolist()
    vars(memory).update({name: array[:length] for (name, array), length in zip(rollout.items(), lengths, strict=True)})


def rings_for(memory: Any, copies: int) -> list[Buffer]:
    """Makes a ring for each world copy; the first gets the memory's rows. A Buffer serves one copy as its ring."""
    if is_rollout(memory):
        return []
    if isinstance(memory, Buffer) and copies == 1:
        memory.release()
        return [memory]
    extras = {name: Field(array.shape[1:], str(array.dtype)) for name, array in memory.extra_data.items()}
    n_frames = int(memory.n_frames)
    capacity = max(int(memory.capacity) // copies, n_frames + 2)
    rings = [Buffer(capacity, memory.obs_shape, n_frames, **extras) for _ in range(copies)]
    rings[0].fill(columns_of(memory), int(memory.idx), int(memory.size))
    return rings


def give_back(rings: Sequence[Buffer], memory: Any) -> None:
    """Writes the rows of all rings, one ring after another, into the caller's buffer, which keeps the last that fit."""
    if memory is rings[0]:
        return
    if len(rings) == 1 and rings[0].capacity == memory.capacity:
        columns, idx, size = columns_of(rings[0]), rings[0].idx, rings[0].size
    else:
        parts = [{name: array[ring.positions()] for name, array in columns_of(ring).items()} for ring in rings]
        columns = {name: np.concatenate([part[name] for part in parts])[-memory.capacity :] for name in parts[0]}
        size = len(columns["obs"])
        idx = size % memory.capacity
    if isinstance(memory, Buffer):
        memory.clear()
        memory.fill(columns, size, size)
        return
    for name, array in columns_of(memory).items():
        array[: len(columns[name])] = columns[name]
    memory.idx, memory.size = idx, size


def learners_memory(rings: Sequence[Buffer]) -> Any:
    """Returns the memory from which a model's learner samples the actors' rows; None if the model uses rollouts."""
    return None if not rings else rings[0] if len(rings) == 1 else JoinedRings(rings)


@contextmanager
def writes_ignored(memory: Any) -> Iterator[None]:
    """Makes the memory ignore writes in a `with` block, since the learner repeats hooks that the actor has called."""
    vars(memory).update(dict.fromkeys(_WRITES, lambda *row, **extras: None))
    try:
        yield
    finally:
        for name in _WRITES:
            del vars(memory)[name]


class JoinedRings:
    """Joins the rings of several copies of the world to one memory, in which every window is equally likely.

    `len` is the number of windows plus n_frames + 1, because sorrel's models ask for a batch if
    `len(memory) >= batch_size + n_frames + 1`; it is 0 without windows.
    """

    def __init__(self, rings: Sequence[Buffer]) -> None:
        self.rings = rings
        self.obs_shape = rings[0].obs_shape
        self.n_frames = rings[0].n_frames
        self.capacity = sum(ring.capacity for ring in rings)

    def sample(self, batch_size: int) -> Batch:
        return self._joined(Buffer.sample, batch_size)

    def sample_transformer(self, batch_size: int) -> Sequences:
        return self._joined(Buffer.sample_transformer, batch_size)

    def _joined(self, sample: Callable[[Buffer, int], Drawn], batch_size: int) -> Drawn:
        windows = self._windows()
        if batch_size > sum(windows):
            raise ValueError(f"batch_size: expected at most {sum(windows)} windows of all copies, got {batch_size}")
        drawn = np.random.choice(sum(windows), batch_size, replace=False)
        shares = np.bincount(np.searchsorted(np.cumsum(windows), drawn, side="right"), minlength=len(windows))
        parts = [sample(ring, int(share)) for ring, share in zip(self.rings, shares, strict=True) if share]
        joined = (None if arrays[0] is None else np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return cast(Drawn, tuple(joined))

    def _windows(self) -> list[int]:
        return [max(0, ring.size - self.n_frames - 1) for ring in self.rings]

    @property
    def size(self) -> int:
        return len(self)

    def __len__(self) -> int:
        windows = sum(self._windows())
        return windows + self.n_frames + 1 if windows else 0

    def clear(self) -> None:
        for ring in self.rings:
            ring.clear()

    def __getattr__(self, name: str) -> Any:
        copies = len(self.__dict__.get("rings", ()))
        raise AttributeError(f"memory: expected an attribute that the memory of {copies} copies has, got {name!r}")
