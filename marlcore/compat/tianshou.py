"""Tianshou's replay buffers with their rows in marlcore's lanes: a lane for each environment.

    from marlcore.compat.tianshou import PrioritizedVectorReplayBuffer, VectorReplayBuffer

replaces the same names of `tianshou.data`. The classes derive from Tianshou's, so indices, priorities, stacks and
n-step returns are Tianshou's own; `add` writes a row to each lane in one call, and one kernel copies a batch.
"""

from collections.abc import Iterator
from copy import deepcopy
from functools import cache
from typing import Any, NoReturn

import numpy as np
import tianshou.data as host
from tianshou.data import Batch, to_numpy

from ..checks import brief, names_error
from ..errors import ClosedError
from ..notices import say
from .lane_arrays import Array, Key, LaneArrays, Leaves
from .replays import ViewedReplay

_NUMBERS: dict[Key, Any] = {("rew",): np.float64, ("terminated",): np.bool_, ("truncated",): np.bool_}
_BESIDE = ("info", "policy")  # trees whose arrays may come and go
_say_once = cache(say)


class ReplayBuffer(host.ReplayBuffer):
    """Tianshou's ReplayBuffer with its rows in one lane; docs/drop-ins.md lists the differences."""

    _rows: LaneArrays | None = None
    _plain: Any = host.ReplayBuffer  # the class of Tianshou

    def __init_subclass__(cls) -> None:
        cls._plain = next(kind for kind in cls.__mro__ if kind.__module__.startswith("tianshou."))

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
        rows, whole = self._rows, self.stack_num == 1 and self._save_obs_next
        if rows is not None and whole and rows.has(index) and [*map(id, vars(self._meta).values())] == self._shown:
            return _tree_of(rows.at(index), "obs_next", *_BESIDE)
        return super().__getitem__(index)  # also for arrays that Tianshou's code put into `_meta`

    def add(self, batch: Batch, buffer_ids: Any = None) -> tuple[Array, ...]:
        """Adds a row, or in a vector buffer one to each part of `buffer_ids` (default: all), as Tianshou does.

        Returns: indices, and the returns, lengths and first indices of the episodes, [rows] each.

        Raises: ValueError, TypeError: an array is missing, new, or of another shape or kind; nothing was added.
        """
        single = "buffers" not in vars(self)
        lanes = list(range(len(_parts_of(self)))) if buffer_ids is None else np.asarray(buffer_ids).tolist()
        if single and buffer_ids is not None and (lanes != [0] or len(batch) != 1):
            raise ValueError(f"buffer_ids: expected None, or [0] and a batch of one row, got {brief(buffer_ids)}")
        parts = {name: part for name, part in vars(batch).items() if single or name in self._reserved_keys}
        leaves = self._columns(parts, not single or buffer_ids is not None)
        rows = self._rows_for(leaves)
        counts = [*zip(lanes, leaves["rew",], leaves["done",].tolist(), strict=False)]  # append compares their lengths
        try:
            rows.append(leaves, lanes)
            results = [self._count(*each) for each in counts]
        except BaseException:
            for lane, *count in counts:  # an interrupt may come after the rows
                part = _parts_of(self)[lane]
                if self.replay.windows()[1, lane] % part.maxsize != part._insertion_idx:
                    self._count(lane, *count)
            raise
        return tuple(map(np.array, zip(*results, strict=True)))

    def _count(self, lane: int, reward: Any, done: bool) -> tuple[int, Any, int, int]:
        """Counts a row as Tianshou does, in an eighth of the time; returns the results of Tianshou's `add`."""
        part = _parts_of(self)[lane]
        state = vars(part)  # each assignment of an attribute is checked by Tianshou
        index, first, size = state["_insertion_idx"], state["_ep_start_idx"], state["maxsize"]
        start, total, length = lane * size, state["_ep_return"] + reward, state["_ep_len"] + 1
        stored, following = min(state["_size"] + 1, size), (index + 1) % size
        part.last_index[0], self.last_index[lane] = index, start + index
        if part is not self:
            self._lengths[lane] = stored
        ended = {"_ep_return": 0.0, "_ep_len": 0, "_ep_start_idx": following}
        counts = ended if done else {"_ep_return": total, "_ep_len": length}
        state.update(counts, _size=stored, _insertion_idx=following)  # one call, which no interrupt divides
        nothing = np.zeros_like(total) if isinstance(total, np.ndarray) else 0.0
        return start + index, *((total, length) if done else (nothing, 0)), start + first

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
        _show(self, Batch())

    def update(self, buffer: host.ReplayBuffer) -> Array:
        """Adds another buffer's rows and returns their indices. Each call copies all rows of this buffer."""
        plain = self.to_tianshou()
        indices: Array = plain.update(buffer)
        self.__setstate__(vars(plain))
        return indices

    def to_tianshou(self) -> Any:
        """Returns a buffer of Tianshou's own class with copies of the rows, statistics and priorities."""
        plain = self._plain.__new__(self._plain)
        vars(plain).update(_without_rows(self.__dict__))
        _show(plain, deepcopy(self._meta))
        return plain

    @classmethod
    def from_tianshou(cls, plain: host.ReplayBuffer) -> Any:
        """Returns a buffer with the rows, statistics and priorities of Tianshou's `plain`, which does not change.

        Raises: TypeError: the buffer is of another class, or has arrays of objects outside of info and policy.
        """
        if type(plain) is not cls._plain:
            raise TypeError(f"plain: expected a {cls._plain.__name__} of Tianshou, got {brief(plain)}")
        buffer = cls.__new__(cls)
        buffer.__setstate__(vars(plain))
        return buffer

    @classmethod
    def from_data(cls, *args: Any, **kwargs: Any) -> Any:
        """Returns a buffer with the rows of these arrays or datasets; see Tianshou's `from_data`."""
        return cls.from_tianshou(cls._plain.from_data(*args, **kwargs))

    def save_hdf5(self, path: str, compression: str | None = None) -> None:
        """Writes a file of Tianshou's, which Tianshou reads too."""
        self.to_tianshou().save_hdf5(path, compression)

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state of a buffer of Tianshou's: a pickle contains the rows and shares no memory."""
        return dict(vars(self.to_tianshou()))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Takes copies of the rows, statistics and priorities of a buffer of Tianshou's."""
        self.__dict__.update(_without_rows({"_random_state": np.random.RandomState(42), **state}))  # of old files
        self.close()
        leaves = dict(_leaves_of(vars(state["_meta"])))
        for lane, part in enumerate(_parts_of(self) if leaves else ()):
            self._rows_for(leaves).fill(lane, leaves, len(part), part._insertion_idx)

    def set_batch(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("set_batch, set_array_at_key, dropnull: expected no call: rows do not change; see to_tianshou")

    set_array_at_key = dropnull = set_batch

    def _rows_for(self, given: dict[Key, Array]) -> LaneArrays:
        """Returns the lanes, which take the arrays of the first row. Raises as `add` if a later row's keys differ."""
        rows = self._rows
        kept = rows.names if rows else {key: "" for key, array in given.items() if array.dtype.kind in "biufc"}
        for key in given.keys() - kept.keys():
            if key[0] not in _BESIDE:
                raise TypeError(f"{'.'.join(key)}: expected the first row's arrays of numbers, got {brief(given[key])}")
            _say_once(f"{type(self).__name__} stores only the numbers of info and policy that the first row has")
        if not {key[0] for key in kept.keys() - given.keys()} <= {*_BESIDE}:
            raise names_error("batch", map(".".join, kept), [*map(".".join, given)])
        if rows is None:
            parts = _parts_of(self)
            first = {key: given[key].astype(_NUMBERS.get(key, given[key].dtype), copy=False) for key in kept}
            rows = LaneArrays(first, len(parts), parts[0].maxsize, "tianshou")
            _show(self, _tree_of(rows.views))
            self._rows, self._shown = rows, [*map(id, vars(self._meta).values())]
        return rows

    def _columns(self, parts: dict[str, Any], stacked: bool) -> dict[Key, Array]:
        """Returns the stored fields of a batch with a leading axis over rows, which a `stacked` batch already has."""
        if not self._save_obs_next:
            parts.pop("obs_next", None)
        for name in {"obs", "obs_next"} & parts.keys() if self._save_only_last_obs else ():
            parts[name] = parts[name][:, -1] if stacked else parts[name][-1]
        leaves = {key: array if stacked else array[np.newaxis] for key, array in _leaves_of(parts)}
        if not leaves.keys() >= _NUMBERS.keys() or not parts.keys() >= {"act", "obs"}:
            raise ValueError(f"batch: expected act, obs, rew, terminated, truncated, got {', '.join(parts)}")
        leaves["done",] = np.logical_or(leaves["terminated",], leaves["truncated",])
        return leaves


def _leaves_of(tree: dict[str, Any], key: Key = ()) -> Iterator[tuple[Key, Array]]:
    for name, part in tree.items():
        if part.__class__ is np.ndarray or not isinstance(part, Batch):
            yield (*key, name), np.asarray(part if part.__class__ is np.ndarray else to_numpy(part))
        elif vars(part):
            yield from _leaves_of(vars(part), (*key, name))


def _tree_of(leaves: Leaves, *empty: str) -> Batch:
    tree = Batch({name: Batch() for name in empty})
    for (*path, name), array in leaves.items():
        node = vars(tree)
        for part in path:
            node = vars(node.setdefault(part, Batch()))
        node[name] = array
    return tree


def _parts_of(buffer: Any) -> Any:
    """Returns a manager's buffers, which are equally large; for another buffer, the buffer itself."""
    return vars(buffer).get("buffers", [buffer])


def _show(buffer: Any, rows: Batch) -> None:
    """Makes a buffer and its parts read these rows, or none."""
    vars(buffer)["_meta"] = rows
    for start, part in zip(vars(buffer).get("_offset", ()), vars(buffer).get("buffers", ()), strict=True):
        vars(part)["_meta"] = rows[start : start + part.maxsize] if vars(rows) else rows


def _without_rows(state: dict[str, Any]) -> dict[str, Any]:
    """Returns copies of a buffer's attributes, without its rows."""
    rows = {id(meta): Batch() for meta in (state["_meta"], *(part._meta for part in state.get("buffers", ())))}
    return deepcopy({name: part for name, part in state.items() if name not in ("_rows", "_shown")}, rows)


class VectorReplayBuffer(ReplayBuffer, host.VectorReplayBuffer):
    """Tianshou's VectorReplayBuffer with a lane for each environment; docs/drop-ins.md lists the differences."""

    def sample_indices(self, batch_size: int | None) -> Any:
        """Draws as Tianshou does, but independently in each part; Tianshou's parts share a seed and may draw alike."""
        if not batch_size or batch_size < 0 or (self._sample_avail and self.stack_num > 1):
            return super().sample_indices(batch_size)
        ends = self._lengths.cumsum()
        numbers = self._random_state.randint(0, ends[-1], batch_size)
        return numbers + (self._offset - ends + self._lengths)[ends.searchsorted(numbers, side="right")]


class PrioritizedReplayBuffer(host.PrioritizedReplayBuffer, ReplayBuffer):
    """Tianshou's PrioritizedReplayBuffer with its rows in one lane; its process keeps the priorities."""


class PrioritizedVectorReplayBuffer(host.PrioritizedVectorReplayBuffer, VectorReplayBuffer):
    """Tianshou's PrioritizedVectorReplayBuffer with a lane for each environment; its process keeps the priorities."""

    set_beta = host.PrioritizedReplayBuffer.set_beta  # that of Tianshou's class changes no weight
