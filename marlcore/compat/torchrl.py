"""TorchRL's replay buffer on marlcore's lanes: several processes write to it at once, without TorchRL's locks.

    buffer = marlcore.compat.torchrl.TensorDictReplayBuffer(100_000, batch_size=256)

replaces `TensorDictReplayBuffer(storage=LazyTensorStorage(100_000), batch_size=256)`. Pass the object itself to other
processes, forked or spawned: each process that extends it writes to its own lane.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import TensorDictReplayBuffer as _TensorDictReplayBuffer
from torchrl.data.replay_buffers import Sampler as _Sampler
from torchrl.data.replay_buffers import Storage as _Storage
from torchrl.data.replay_buffers import Writer as _Writer

from ..checks import brief, names_error
from ..closing import ClosedAfterError
from ..errors import LaneBusy, MarlcoreError, NotEnoughData
from ..memory import SEGMENT_LOCK, SegmentHandle, invalidate_after_fork
from ..regular_files import open_regular
from ..replay import ReplayBuffer as Replay
from ..replay import Sampler
from ..spec import Field, rows_of
from ..transitions import Batch, Writer
from .replays import from_bytes, spec_of, to_bytes

Key = str | tuple[str, ...]
Axes = tuple[list[int], dict[tuple[str, ...], list[int]]]  # batch dimensions of a row, and of nested rows with more

_NAME = "torchrl"  # of the replays
_INDEX = "index"  # TorchRL adds it to added and to drawn rows


class TensorDictReplayBuffer(_TensorDictReplayBuffer):
    """TorchRL's TensorDictReplayBuffer with uniform sampling and its rows in lanes of shared memory.

    Rows are TensorDicts with the same leaves, of NumPy's dtypes. Fork before the first prefetched sample: TorchRL's
    locks and threads do not survive a fork. `index` identifies a row for ever (ticket * lanes + lane), but it is not a
    slot: rows can be drawn, not indexed. docs/drop-ins.md lists the differences.

    Args:
        max_size: rows held in all lanes together.
        lanes: the largest number of processes that write at once.
        example: one row, or rows with a leading axis as for `extend`. With an example, the constructor allocates the
            memory; otherwise the first added row does. The buffer needs its memory before it goes to other processes.
        options: TorchRL's, except storage, sampler and writer.

    Raises: see ReplayBuffer.create. LaneBusy: more processes add rows than there are lanes.
    """

    def __init__(self, max_size: int, *, lanes: int = 1, example: TensorDictBase | None = None, **options: Any) -> None:
        for name in ("storage", "sampler", "writer"):
            if name in options:
                raise ValueError(f"{name}: expected none, since the lanes take its place, got {brief(options[name])}")
        storage = _LaneStorage(max_size, lanes)
        if example is not None:
            storage.allocate(example if example.ndim else example[None])
        options.setdefault("collate_fn", _as_it_is)
        super().__init__(storage=storage, sampler=_LaneSampler(), writer=_LaneWriter(), **options)

    def close(self) -> None:
        """Releases the shared memory; dropping the last reference to the buffer does the same."""
        self._storage.close()


class _LaneStorage(_Storage):
    def __init__(self, max_size: int, lanes: int) -> None:
        super().__init__(max_size, compilable=True)  # the base's unused counters then take no semaphores
        self.lanes = lanes
        self.keys: dict[str, Key] = {}  # the keys of the leaves by the names of their fields in the spec
        self.axes: Axes | None = None  # of a state of marlcore 0.1.0, which has none: those of the next rows
        self._handle: SegmentHandle | None = None
        self.forked()
        invalidate_after_fork(self)

    def forked(self) -> None:
        """Forgets this process's own objects: a forked child attaches anew when used, with a lane of its own."""
        self._replay: Replay | None = None
        self.drawn: tuple[torch.Tensor, Batch] | None = None
        self._writer: Writer | None = None
        self._samplers: dict[int, Sampler] = {}

    def _hold(self, replay: Replay | None) -> None:
        if self._replay is not None:
            self._replay.close()
        self._handle = None if replay is None else replay.handle
        self.forked()
        self._replay = replay

    @property
    def replay(self) -> Replay | None:
        """The replay that holds the rows; None before it is allocated."""
        if self._replay is None and self._handle is not None:
            self._replay = Replay.attach(self._handle)
        return self._replay

    def allocate(self, rows: TensorDictBase) -> None:
        leaves = _leaves(rows)
        self.keys = {f"leaf_{i}": key for i, key in enumerate(leaves)}
        fields = {name: _field(key, leaves[key]) for name, key in self.keys.items()}
        self._hold(Replay.create(spec_of(fields), self.max_size, self.lanes, name=_NAME))
        self.axes = _axes(rows, leaves)

    def append(self, rows: TensorDictBase) -> torch.Tensor:
        """Adds rows to this process's lane, in parts of at most a lane; returns their indices."""
        if self.replay is None:
            self.allocate(rows)
        assert self.replay is not None
        leaves = _leaves(rows)
        if leaves.keys() != set(self.keys.values()):
            raise names_error("tensordict", map(str, self.keys.values()), list(leaves))
        axes = _axes(rows, leaves)
        if (expected := self.axes or axes) != axes:
            raise ValueError(f"batch_size: expected {expected} of a row and its nested TensorDicts, got {axes}")
        self.axes = axes
        fields = self.replay.spec.extra_fields
        arrays = {
            name: rows_of(str(key), fields[name], leaves[key].detach().cpu().numpy(), len(rows))
            for name, key in self.keys.items()
        }
        if self._writer is None:
            self._writer = self._first_free_lane(self.replay)
        step = self.replay.capacity // self.lanes
        tickets = [torch.zeros(0, dtype=torch.int64)]
        for start in range(0, len(rows), step):
            part = {name: array[start : start + step] for name, array in arrays.items()}
            unused = np.zeros(min(step, len(rows) - start), np.uint8)
            first = self._writer.add_batch(unused, unused, unused.astype(np.float32), next_obs=unused, **part)
            tickets.append(torch.arange(first, first + len(unused)))
        return torch.cat(tickets) * self.lanes + self._writer.lane

    def _first_free_lane(self, replay: Replay) -> Writer:
        for lane in range(self.lanes):
            with suppress(LaneBusy):
                return replay.writer(lane)
        raise LaneBusy(f"lanes: expected one for each process that adds rows, got {self.lanes}, all taken")

    def draw(self, batch_size: int, generator: torch.Generator | None) -> torch.Tensor:
        """Draws a batch and returns its indices; the next `get` with these indices returns the batch."""
        if self.replay is None:
            raise NotEnoughData("sample: expected at least one row, got an empty buffer")
        if batch_size not in self._samplers:
            seed = int(torch.randint(2**62, (), generator=generator))
            self._samplers[batch_size] = self.replay.sampler(batch_size, seed=seed, min_size=1)
        batch = self._samplers[batch_size].sample()
        index = torch.from_numpy(batch.index)
        self.drawn = index, batch
        return index

    def get(self, index: Any) -> TensorDict:
        drawn, self.drawn = self.drawn, None
        if drawn is None or drawn[0] is not index:
            raise IndexError("index: expected the index of the newest draw, since rows in lanes have no slots")
        batch, (own, nested) = drawn[1], self.axes or ([], {})
        leaves = {key: torch.from_numpy(batch.extras[name]) for name, key in self.keys.items()}
        rows = TensorDict(leaves, [len(batch), *own])
        for key, axes in nested.items():
            rows.get(key).batch_size = [len(batch), *axes]
        return rows

    def set(self, cursor: Any, data: Any, *, set_cursor: bool = True) -> NoReturn:
        raise TypeError("set: not supported, since stored rows cannot change; use add or extend")

    def contains(self, item: Any) -> NoReturn:
        raise TypeError("contains: rows of lanes have no slots")

    def __len__(self) -> int:
        return 0 if self.replay is None else len(self.replay)

    def close(self) -> None:
        self._hold(None)

    def _empty(self) -> None:
        self.load_state_dict({})

    def state_dict(self) -> dict[str, Any]:
        if self.replay is None:
            return {}
        saved = torch.frombuffer(bytearray(to_bytes(self.replay)), dtype=torch.uint8)
        return {"keys": self.keys, "axes": self.axes, "saved": saved}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replaces the rows by a state's rows; if the state does not fit, the old rows stay."""
        if self.replay is not None and self.replay._segment.is_locked(SEGMENT_LOCK):
            raise MarlcoreError("empty, load: expected a buffer of one process, got a buffer of several")
        if not state_dict:
            self.close()
            return
        keys, replay = state_dict["keys"], from_bytes(state_dict["saved"].numpy().data, _NAME, Replay)
        with ClosedAfterError(replay):
            if (replay.capacity, replay.lanes) != (self.max_size // self.lanes * self.lanes, self.lanes):
                saved = f"{replay.capacity}, {replay.lanes}, as in the saved buffer"
                raise ValueError(f"max_size, lanes: expected {saved}, got {self.max_size}, {self.lanes}")
            if keys.keys() != replay.spec.extras.keys():
                raise names_error("keys", replay.spec.extras, keys)
        self._hold(replay)
        self.keys, self.axes = keys, state_dict.get("axes")

    def dumps(self, path: str | Path) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)
        torch.save(self.state_dict(), Path(path) / "lanes.pt")

    def loads(self, path: str | Path) -> None:
        with open_regular(Path(path) / "lanes.pt") as file:
            self.load_state_dict(torch.load(file, weights_only=True))

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, which attaches to the same memory and writes to another lane."""
        if self.replay is None:
            raise TypeError("a buffer without memory cannot be passed on: give it an `example`, or add a row before")
        return {**super().__getstate__(), "drawn": None, "_writer": None, "_samplers": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        invalidate_after_fork(self)


def _nothing(self: Any, path: object = None) -> Any:
    """Does nothing, since the storage holds all state."""


class _LaneWriter(_Writer):
    _write_count = 0  # rows that this process added

    def add(self, data: TensorDictBase) -> torch.Tensor:
        return self.extend(data[None])[0]

    def extend(self, data: TensorDictBase) -> torch.Tensor:
        index: torch.Tensor = self._storage.append(data)
        self._write_count += len(index)
        return index

    def _empty(self, empty_write_count: bool = True) -> None:
        if empty_write_count:
            self._write_count = 0

    def state_dict(self) -> dict[str, Any]:
        return {"write_count": self._write_count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._write_count = state_dict["write_count"]

    dumps = _nothing

    def loads(self, path: str | Path) -> None:
        self._write_count = len(self._storage)


class _LaneSampler(_Sampler):
    def sample(self, storage: _LaneStorage, batch_size: int) -> tuple[torch.Tensor, dict[str, Any]]:
        return storage.draw(batch_size, self._rng), {}

    def state_dict(self) -> dict[str, Any]:
        return {}

    _empty = load_state_dict = dumps = loads = _nothing


def _as_it_is(data: Any) -> Any:
    return data


def _leaves(rows: TensorDictBase) -> dict[Key, torch.Tensor]:
    keys = sorted(rows.keys(include_nested=True, leaves_only=True), key=str)
    return {key: rows.get(key) for key in keys if key != _INDEX}


def _axes(rows: TensorDictBase, leaves: Iterable[Key]) -> Axes:
    nested = dict.fromkeys(key[:end] for key in leaves if isinstance(key, tuple) for end in range(1, len(key)))
    sizes = {key: [*rows.get(key).batch_size[1:]] for key in nested}
    return [*rows.batch_size[1:]], {key: size for key, size in sizes.items() if len(size) >= rows.ndim}


def _field(key: Key, leaf: Any) -> Field:
    try:
        dtype = leaf[:0].detach().cpu().numpy().dtype
    except (TypeError, AttributeError):
        raise TypeError(f"{key}: expected a tensor of a dtype that NumPy has, got {brief(leaf)}") from None
    return Field(tuple(leaf.shape[1:]), dtype.name)
