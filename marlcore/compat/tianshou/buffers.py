"""Tianshou's buffers, single and for several environments, whose arrays lie in lanes."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, NoReturn

import numpy as np
import tianshou.data as host
from numpy.typing import NDArray
from tianshou.data import Batch

from ...checks import brief, names_error
from ...errors import ClosedError
from ...notices import say
from ..lane_arrays import Array, Key, LaneArrays
from ..replays import ViewedReplay
from .trees import are_indices, as_array, count_row, leaves_of, parts_of, show, state_of, tree_of

_NEEDED = frozenset(("obs", "act", "rew", "terminated", "truncated"))
_BESIDE = ("info", "policy")  # trees whose arrays may come and go
_FIXED = "expected no call, since rows of lanes do not change"


class _InLanes(host.ReplayBuffer):
    """A buffer of Tianshou whose arrays, those of the first row, are read-only views of lanes."""

    _rows: LaneArrays | None = None
    _shown: list[int]  # the ids of what `_meta` has while no host puts other arrays there
    _told = False  # whether the notice of arrays that are left out was given
    _plain: Any  # the class of Tianshou

    @property
    def replay(self) -> ViewedReplay:
        """The rows in shared memory, from which other processes may sample. Raises ClosedError before the first row."""
        if self._rows is None:
            raise ClosedError("replay: expected a buffer with rows, got an empty one")
        return self._rows.replay

    @property
    def names(self) -> dict[str, str]:
        """The names of the arrays in `replay`, by their keys here, such as "obs" or "info.env_id"."""
        return {} if self._rows is None else {".".join(key): name for key, name in self._rows.names.items()}

    def __getitem__(self, index: Any) -> Batch:
        rows = self._rows
        quick = rows is not None and self.stack_num == 1 and self._save_obs_next and are_indices(index, self.maxsize)
        if rows is None or not quick or [*map(id, vars(self._meta).values())] != self._shown:
            return super().__getitem__(index)
        batch = tree_of(rows.at(index))
        for name in ("obs_next", *_BESIDE):
            vars(batch).setdefault(name, Batch())
        return batch

    def add(self, batch: Batch, buffer_ids: Any = None) -> tuple[Array, ...]:
        """Adds a row, or in a vector buffer one to each part of `buffer_ids` (default: all), as Tianshou does.

        Returns: indices, and the returns, lengths and first indices of the episodes, [rows] each.

        Raises: ValueError, TypeError: an array is missing, new, or of another shape or kind; nothing was added.
        """
        parts, several = parts_of(self), "buffers" in vars(self)
        lanes = list(range(len(parts))) if buffer_ids is None else np.asarray(buffer_ids).tolist()
        if not several and buffer_ids is not None and (lanes != [0] or len(batch) != 1):
            raise ValueError(f"buffer_ids: expected None, or [0] and a batch of one row, got {brief(buffer_ids)}")
        known = {name: part for name, part in vars(batch).items() if not several or name in self._reserved_keys}
        columns = self._columns(known, stacked=several or buffer_ids is not None)
        rewards = columns["rew",]
        rewards = rewards.tolist() if rewards.ndim == 1 else rewards
        counts = zip(lanes, rewards, columns["done",].tolist(), strict=True)
        try:
            self._store(columns, lanes)
            results = [self._counted(parts, *count) for count in counts]
        except BaseException:
            heads = self._rows.replay.windows()[1] if self._rows else np.zeros(len(parts), np.int64)
            for lane, reward, done in zip(lanes, rewards, columns["done",].tolist(), strict=True):
                if heads[lane] % parts[lane][1].maxsize != parts[lane][1]._insertion_idx:  # an interrupt after the row
                    self._counted(parts, lane, reward, done)
            raise
        return tuple(map(np.array, zip(*results, strict=True)))

    def _counted(self, parts: list[tuple[int, Any]], lane: int, reward: Any, done: bool) -> tuple[int, Any, int, int]:
        start, part = parts[lane]
        index, total, length, first = count_row(part, reward, done)
        if "buffers" in vars(self):
            self.last_index[lane], self._lengths[lane] = start + index, part._size
        return start + index, total, length, start + first

    def reset(self, keep_statistics: bool = False) -> None:
        """Deletes all rows and priorities. The next row takes new memory, to which other processes must attach anew."""
        super().reset(keep_statistics)
        self.close()
        if "weight" in vars(self):
            self.weight[np.arange(self.maxsize)] = 0.0  # otherwise deleted rows are drawn, as in Tianshou

    def close(self) -> None:
        """Releases the shared memory; dropping the last reference to the buffer does the same."""
        if self._rows is not None:
            self._rows.replay.close()
        self._rows = None
        show(self, Batch())

    def update(self, buffer: host.ReplayBuffer) -> NDArray[np.int64]:
        """Adds the rows of another buffer, and returns their indices; it copies all rows of this one."""
        plain = self.to_tianshou()
        indices: NDArray[np.int64] = plain.update(buffer)
        self._become(plain)
        return indices

    def to_tianshou(self) -> Any:
        """Returns a buffer of Tianshou's own class with copies of the rows, statistics and priorities."""
        plain = self._plain.__new__(self._plain)
        vars(plain).update(state_of(self))
        show(plain, deepcopy(self._meta))
        return plain

    @classmethod
    def from_tianshou(cls, plain: host.ReplayBuffer) -> Any:
        """Returns a buffer with the rows, statistics and priorities of one of Tianshou's, which stays as it is.

        Raises: TypeError: the buffer is of another class, or has arrays of objects outside of info and policy.
        """
        if type(plain) is not cls._plain:
            raise TypeError(f"plain: expected a {cls._plain.__name__} of Tianshou, got {brief(plain)}")
        buffer = cls.__new__(cls)
        buffer._become(plain)
        return buffer

    @classmethod
    def from_data(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a buffer with the rows of these arrays or datasets; see Tianshou's `from_data`."""
        return cls.from_tianshou(cls._plain.from_data(*args, **kwargs))

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Writes a file of Tianshou's, which Tianshou reads too."""
        self.to_tianshou().save_hdf5(path, compression)

    @classmethod
    def load_hdf5(cls, path: str, device: str | None = None) -> Any:
        """Reads a file of this class or Tianshou's. Tianshou unpickles parts of it: trust where it comes from."""
        return cls.from_tianshou(cls._plain.load_hdf5(path, device))

    def __reduce__(self) -> Any:
        """A pickle contains the rows, and shares no memory."""
        return type(self).from_tianshou, (self.to_tianshou(),)

    def set_batch(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"set_batch, set_array_at_key, dropnull: {_FIXED}; to_tianshou copies them into arrays")

    set_array_at_key = dropnull = set_batch

    def _become(self, plain: host.ReplayBuffer) -> None:
        self.__dict__.update(state_of(plain))
        self.close()
        leaves = dict(leaves_of(vars(plain._meta)))
        for lane, (start, part) in enumerate(parts_of(self) if leaves else ()):
            rows = self._rows or self._allocated(leaves)
            held = {key: leaves[key][start : start + part.maxsize] for key in rows.names}
            rows.fill(lane, held, len(part), part._insertion_idx)

    def _store(self, leaves: dict[Key, Array], lanes: list[int]) -> None:
        rows = self._rows or self._allocated(leaves)
        if leaves.keys() != rows.names.keys():
            self._leave_out(leaves, leaves.keys() - rows.names.keys())
            for key in rows.names.keys() - leaves.keys():
                if key[0] not in _BESIDE:
                    raise names_error("batch", map(".".join, rows.names), [*map(".".join, leaves)])
                leaves[key] = rows.fields[key].zeros(len(lanes))
        rows.append(leaves, lanes)

    def _allocated(self, leaves: dict[Key, Array]) -> LaneArrays:
        self._leave_out(leaves, [key for key, array in leaves.items() if array.dtype.kind not in "biufc"])
        parts = parts_of(self)
        self._rows = LaneArrays(leaves, len(parts), parts[0][1].maxsize, "tianshou")
        show(self, tree_of(self._rows.views))
        self._shown = [*map(id, vars(self._meta).values())]
        return self._rows

    def _leave_out(self, leaves: dict[Key, Array], keys: Iterable[Key]) -> None:
        for key in keys:
            array = leaves.pop(key)
            if key[0] not in _BESIDE:
                raise TypeError(f"{'.'.join(key)}: expected the first row's arrays of numbers, got {brief(array)}")
            if not self._told:
                say(f"{type(self).__name__} stores the numbers of the first info and policy, not {'.'.join(key)}")
            self._told = True

    def _columns(self, parts: dict[str, Any], stacked: bool) -> dict[Key, Array]:
        """Returns the stored fields of a batch with a leading axis over rows, which a batch that is `stacked` has."""
        if not parts.keys() >= _NEEDED:
            raise ValueError(f"batch: expected {', '.join(sorted(_NEEDED))}, got {', '.join(parts)}")
        if not self._save_obs_next:
            parts.pop("obs_next", None)
        for name in {"obs", "obs_next"} & parts.keys() if self._save_only_last_obs else ():
            parts[name] = parts[name][:, -1] if stacked else parts[name][-1]
        for name, kind in {"rew": np.float64, "terminated": np.bool_, "truncated": np.bool_}.items():
            if (array := as_array(parts[name])).dtype.kind not in "biuf":
                raise TypeError(f"{name}: expected numbers, got {brief(parts[name])}")
            parts[name] = array.astype(kind, copy=False)
        parts["done"] = parts["terminated"] | parts["truncated"]
        return dict(leaves_of(parts)) if stacked else {key: array[np.newaxis] for key, array in leaves_of(parts)}


class ReplayBuffer(_InLanes):
    """Tianshou's ReplayBuffer with its rows in one lane; docs/drop-ins.md lists the differences."""

    _plain = host.ReplayBuffer


class _Manager(_InLanes, host.ReplayBufferManager):
    def sample_indices(self, batch_size: int | None) -> Any:
        """Draws as Tianshou says, but independently: there, the parts have one seed, and often draw alike."""
        if not batch_size or batch_size < 0 or (self._sample_avail and self.stack_num > 1):
            return super().sample_indices(batch_size)
        ends = self._lengths.cumsum()
        numbers = self._random_state.randint(0, ends[-1], batch_size)
        lanes = ends.searchsorted(numbers, side="right")
        return numbers + (self._offset - ends + self._lengths)[lanes]


class VectorReplayBuffer(host.VectorReplayBuffer, _Manager):
    """Tianshou's VectorReplayBuffer with a lane for each environment; docs/drop-ins.md lists the differences."""

    _plain = host.VectorReplayBuffer


class PrioritizedReplayBuffer(host.PrioritizedReplayBuffer, ReplayBuffer):
    """Tianshou's PrioritizedReplayBuffer with its rows in one lane; its process keeps the priorities."""

    _plain = host.PrioritizedReplayBuffer


class PrioritizedVectorReplayBuffer(host.PrioritizedVectorReplayBuffer, _Manager):
    """Tianshou's PrioritizedVectorReplayBuffer with a lane for each environment; its process keeps the priorities."""

    _plain = host.PrioritizedVectorReplayBuffer

    def set_beta(self, beta: float) -> None:
        """Sets the exponent of the weights in batches; in Tianshou's own class, the call changes no batch."""
        super().set_beta(beta)
        self._beta = beta
