"""A replay in shared memory with the interface of sorrel's Buffer: filled by an actor process, sampled by a learner.

    from marlcore.compat.sorrel import Buffer

What differs from sorrel.buffers.Buffer (sorrel itself is not needed):

- Passing the buffer to a process, forked or spawned, shares its rows instead of copying them.
- A sampled window never crosses the write head of a full ring; the draws of those that would are made again. All other
  draws are those that sorrel makes from the same NumPy seed.
- `states`, `actions`, `rewards`, `dones`, `extra_data` are read-only copies: nothing but `add` writes to the ring.
- `add_empty` stores rows of zeros, where sorrel leaves what the ring held before; with one frame it does nothing.
- Extra fields are those that the constructor names; one that is not given to `add` is zero.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from ..errors import NotEnoughData
from ..spec import Field
from ..values import as_field, came, names_error
from .checks import whole_number
from .ring import Ints, Ring, Window

__all__ = ["Buffer"]

Batch = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

_ONE = ("action", "reward", "done")
_SAVED = {"states", "n_frames", "idx", *(f"{name}s" for name in _ONE)}


class Buffer:
    """Transitions of one agent, in the order of its steps, in shared memory.

    An episode ends where `done` is true. The interface has no truncation: an episode that was cut off must be marked
    as done too, or windows go on into the next one. One process adds at a time; any number sample.

    Args:
        capacity: rows, at least 1.
        obs_shape: shape of one observation.
        n_frames: observations in each sampled state.
        extra_fields: further int64 fields: a tuple is the field's shape, anything else stands for a scalar.

    Attributes:
        capacity, obs_shape, n_frames: as given.

    Raises: ValueError, TypeError: an argument is out of range. SharedMemoryFull: there is no room for it.
    """

    def __init__(self, capacity: int, obs_shape: Sequence[int], n_frames: int = 1, **extra_fields: Any) -> None:
        n_frames = whole_number("n_frames", n_frames, 1)
        if not isinstance(obs_shape, Iterable):
            raise TypeError(f"obs_shape: expected a sequence of integers, got {came(obs_shape)}")
        taken = sorted({"obs", "count", *_ONE} & extra_fields.keys())
        if taken:
            raise ValueError(f"extra_fields: {taken[0]!r} is the name of a field that every row has")
        self.capacity = capacity
        self.obs_shape = obs_shape
        self.n_frames = n_frames
        extras = {name: Field(shape if isinstance(shape, tuple) else (), "int64")
                  for name, shape in extra_fields.items()}  # fmt: skip
        self._ring = Ring(
            {
                "obs": Field(tuple(obs_shape), "float32"),
                "action": Field((), "int64"),
                "reward": Field((), "float32"),
                "done": Field((), "float32"),
                # sorrel's own count of rows since the ring was cleared: add_empty counts as one.
                "count": Field((), "int64"),
                **extras,
            },
            capacity,
        )
        self._extra_fields = extras

    def add(self, obs: Any, action: Any, reward: float, done: bool, **kwargs: Any) -> None:
        """Adds one step.

        Args:
            obs: the observation acted on, obs_shape; leading axes of one are dropped.
            action: an integer. reward: what it earned. done: whether the episode ended with it.
            kwargs: the extra fields; those left out are zero.

        Raises: ValueError, TypeError: a field is unknown, or of another shape or kind; nothing was added.
        """
        if not kwargs.keys() <= self._extra_fields.keys():
            raise names_error("extra fields", self._extra_fields, kwargs)
        obs = np.asarray(obs)
        while obs.ndim > len(self.obs_shape) and len(obs) == 1:
            obs = obs[0]
        values = {"obs": obs, "action": action, "reward": reward, "done": done, **kwargs}
        rows = self._zeros(1)
        for name, value in values.items():
            rows[name][0] = as_field(name, self._ring.fields[name], value)
        self._append(rows, np.ones(1, np.int64))

    def add_empty(self) -> None:
        """Adds n_frames - 1 rows of zeros, which keep one game's frames out of the next one's states."""
        if self.n_frames > 1:
            counts = np.zeros(self.n_frames - 1, np.int64)
            counts[0] = 1
            self._append(self._zeros(self.n_frames - 1), counts)

    def add_from_buffer(self, buffer: Any) -> None:
        """Adds the rows of another buffer, of this class or of sorrel's: the first `buffer.size` positions.

        Raises: ValueError: its observations have another shape, or it has an extra field that this one has not.
        """
        if tuple(buffer.obs_shape) != tuple(self.obs_shape):
            raise ValueError(f"obs: expected observations {tuple(self.obs_shape)}, got {tuple(buffer.obs_shape)}")
        if not buffer.extra_data.keys() <= self._extra_fields.keys():
            raise names_error("extra fields", self._extra_fields, buffer.extra_data)
        size = min(int(buffer.size), self.capacity)
        if size:
            columns = {"obs": buffer.states, "action": buffer.actions, "reward": buffer.rewards, "done": buffer.dones}
            self._add_columns({**columns, **buffer.extra_data}, 0, size)

    def sample(self, batch_size: int) -> Batch:
        """Windows of n_frames steps and the observation after them, each drawn at most once.

        Draws from NumPy's global generator. When so many windows cross the write head that not enough others are
        left, the ones drawn in their place may repeat.

        Returns: states and next_states float32 [batch_size, n_frames * obs], actions int64, rewards, dones float32 and
            valid float64, each [batch_size, 1]; valid is 0 where an episode ended among the first n_frames - 1 steps.

        Raises:
            ValueError: batch_size is not from 1 to the len - n_frames - 1 windows that can be drawn.
            NotEnoughData: the ring holds no whole window.
        """
        batch_size = whole_number("batch_size", batch_size, 1)
        window = self._ring.window()
        population = max(1, self._size(window) - self.n_frames - 1)
        if batch_size > population:
            raise ValueError(f"batch_size: expected at most {population} while {len(self)} rows are held, "
                             f"got {batch_size}")  # fmt: skip
        span = np.arange(self.n_frames + 1)
        taken = np.zeros(0, np.int64)

        def draw(count: int) -> Ints:
            nonlocal taken
            window = self._ring.window()
            if not len(taken):
                starts = np.random.choice(population, count, replace=False)
                bad = np.flatnonzero(~self._is_window(window, starts))
                if len(bad):
                    starts[bad] = self._others(window, population, len(bad), starts)
            else:
                starts = self._others(window, population, count, taken)
            taken = np.concatenate([taken, starts])
            return window.tickets(starts[:, np.newaxis] + span)

        rows, _ = self._ring.whole(batch_size, draw)
        obs, done = rows["obs"], rows["done"]
        last = self.n_frames - 1
        return (
            obs[:, :-1].reshape(batch_size, -1),
            rows["action"][:, last].reshape(batch_size, -1),
            rows["reward"][:, last].reshape(batch_size, -1),
            obs[:, 1:].reshape(batch_size, -1),
            done[:, last].reshape(batch_size, -1),
            (1.0 - np.any(done[:, :last], axis=-1)).reshape(batch_size, -1),
        )

    def clear(self) -> None:
        """Forgets every row, for all processes."""
        self._ring.clear()

    def getidx(self) -> int:
        """The position that is written next."""
        return self.idx

    def last_transition(self, offset: int = 0) -> tuple[int, float, bool] | None:
        """The (action, reward, done) of `offset` rows before the newest one; None when there is no such row."""
        window = self._ring.window()
        if self._size(window) <= offset:
            return None
        rows, ok = self._ring.gather(np.array([window.hi - 1 - offset]))
        if not ok[0]:
            return None
        return int(rows["action"][0]), float(rows["reward"][0]), bool(rows["done"][0])

    def current_state(self) -> NDArray[np.float32]:
        """The last n_frames - 1 observations, oldest first: float32 [n_frames - 1, *obs_shape].

        Where fewer were added since the ring was cleared, zeros stand in their places.
        """
        window = self._ring.window()
        held = min(self.n_frames - 1, window.hi - window.lo)
        state = np.zeros((self.n_frames - 1, *self.obs_shape), np.float32)
        rows, ok = self._ring.gather(np.arange(window.hi - held, window.hi), "obs")
        state[len(state) - held :][ok] = rows["obs"][ok]
        return state

    @property
    def idx(self) -> int:
        """The position that is written next."""
        return self._ring.window().head

    @property
    def size(self) -> int:
        """Rows held, as sorrel counts them: `add_empty` counts as one."""
        return self._size(self._ring.window())

    @property
    def states(self) -> NDArray[np.float32]:
        """A copy of all observations by position: float32 [capacity, *obs_shape], zeros where nothing is held."""
        return self._snapshot()["obs"]

    @property
    def actions(self) -> NDArray[np.int64]:
        """A copy of all actions by position: int64 [capacity]."""
        return self._snapshot()["action"]

    @property
    def rewards(self) -> NDArray[np.float32]:
        """A copy of all rewards by position: float32 [capacity]."""
        return self._snapshot()["reward"]

    @property
    def dones(self) -> NDArray[np.float32]:
        """A copy of all ends of episodes by position: float32 [capacity]."""
        return self._snapshot()["done"]

    @property
    def extra_data(self) -> Mapping[str, NDArray[np.int64]]:
        """Copies of the extra fields by position, each int64 [capacity, *shape]."""
        found = self._snapshot()
        return MappingProxyType({name: found[name] for name in self._extra_fields})

    def save(self, output_file: str | Path) -> None:
        """Writes the rows to a compressed .npz file, which sorrel's Buffer.load reads too."""
        found = self._snapshot()
        columns: dict[str, Any] = {f"{name}s": found[name] for name in _ONE}
        columns.update((name, found[name]) for name in self._extra_fields)
        np.savez_compressed(Path(output_file), states=found["obs"], n_frames=self.n_frames, idx=self.idx, **columns)

    @classmethod
    def load(cls, input_file: str | Path) -> Buffer:
        """A full buffer with the rows of a file that `save` or sorrel wrote, each at its position.

        Raises: ValueError: it is another file. OSError: it cannot be read.
        """
        try:
            columns = _read(Path(input_file))
        except (ValueError, EOFError, BadZipFile, zlib.error) as error:
            raise ValueError(f"input_file: expected an .npz file, got {str(input_file)!r} ({came(error)})") from None
        if not {*columns} >= _SAVED:
            raise ValueError(f"input_file: expected one with {sorted(_SAVED)}, got {sorted(columns)}")
        n_frames, idx = int(columns.pop("n_frames")), int(columns.pop("idx"))
        rows = {"obs": columns.pop("states"), **{name: columns.pop(f"{name}s") for name in _ONE}, **columns}
        capacity = len(rows["obs"])
        shapes = {name: array.shape[1:] for name, array in columns.items()}
        buffer = cls(capacity, rows["obs"].shape[1:], n_frames, **shapes)
        buffer._add_columns(rows, 0, capacity)
        if idx:  # the rows before the write head again, which moves it there
            buffer._add_columns(rows, 0, idx)
        return buffer

    def close(self) -> None:
        """Lets go of the memory; it also goes with the last reference to the buffer."""
        self._ring.close()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int | slice) -> tuple[Any, Any, Any, Any]:
        """The state, action, reward and done at a position or a slice of positions."""
        found = self._snapshot()
        return found["obs"][idx], found["action"][idx], found["reward"][idx], found["done"][idx]

    def __repr__(self) -> str:
        return f"Buffer(capacity={self.capacity}, obs_shape={self.obs_shape})"

    def _zeros(self, count: int) -> dict[str, NDArray[Any]]:
        return {name: np.zeros((count, *field.shape), field.dtype) for name, field in self._ring.fields.items()}

    def _append(self, rows: dict[str, NDArray[Any]], counts: Ints) -> None:
        window = self._ring.window()
        before = 0
        if window.hi > window.base:
            newest, _ = self._ring.gather(np.array([window.hi - 1]), "count")
            before = int(newest["count"][0])
        rows["count"] = before + np.cumsum(counts)
        self._ring.append(rows, len(counts))

    def _add_columns(self, columns: Mapping[str, Any], first: int, last: int) -> None:
        """Adds rows first to last - 1 of arrays of at least that length."""
        rows = self._zeros(last - first)
        for name, array in columns.items():
            field = self._ring.fields[name]
            rows[name] = as_field(name, Field((last - first, *field.shape), field.dtype), array[first:last])
        self._append(rows, np.ones(last - first, np.int64))

    def _size(self, window: Window) -> int:
        if not window.stored:
            return 0
        newest, ok = self._ring.gather(np.array([window.hi - 1]), "count")
        return min(int(newest["count"][0]), window.stored) if ok[0] else window.stored

    def _is_window(self, window: Window, starts: Ints) -> NDArray[np.bool_]:
        """Whether the windows that begin at these positions are held and do not cross the write head."""
        ends = starts + self.n_frames
        if window.stored < self.capacity:
            return ends < window.stored
        return (starts >= window.head) | (ends < window.head)

    def _others(self, window: Window, population: int, count: int, taken: Ints) -> Ints:
        """Starts of windows that are held, with those already taken only where there are not enough others.

        Raises: NotEnoughData: there is no such window.
        """
        starts = np.arange(population)
        starts = starts[self._is_window(window, starts)]
        if not len(starts):
            raise NotEnoughData(f"sample: expected at least {self.n_frames + 2} rows, got {window.stored}")
        others = np.setdiff1d(starts, taken)
        return np.random.choice(others if len(others) >= count else starts, count, replace=len(others) < count)

    def _snapshot(self) -> dict[str, NDArray[Any]]:
        """Read-only copies of all fields by position; zeros where nothing is held."""
        window = self._ring.window()
        found = self._zeros(self.capacity)
        positions = np.arange(window.stored)
        rows, ok = self._ring.gather(window.tickets(positions))
        for name, array in found.items():
            array[positions[ok]] = rows[name][ok]
            array.flags.writeable = False
        return found


def _read(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name. Raises what NumPy does for another file; ValueError: it is one array."""
    with path.open("rb") as file:  # NumPy leaves one open that it cannot read
        found = np.load(file)
        if not isinstance(found, NpzFile):
            raise ValueError(f"it holds one array of shape {found.shape}")
        with found:
            return {name: found[name] for name in found.files}
