"""A replay in shared memory with the interface of sorrel's Buffer: an actor process fills it, a learner samples it.

    from marlcore.compat.sorrel import Buffer

Differences from sorrel.buffers.Buffer (sorrel itself is not needed):

- Passing the buffer to a process, forked or spawned, shares its rows instead of copying them.
- A sampled window never crosses the write head of a full ring; such a window is drawn again. All other draws equal
  sorrel's from the same NumPy seed.
- `states`, `actions`, `rewards`, `dones`, `extra_data` are read-only copies: only `add` writes to the ring.
- `add_empty` stores rows of zeros, where sorrel leaves the ring's old content; with one frame it does nothing.
- The constructor names the extra fields; one that is not given to `add` is zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import as_field, came, names_error
from ...errors import NotEnoughData
from ...memory import invalidate_after_fork
from ...spec import Field
from ..checks import whole_number
from ..npz import read_npz
from ..ring import Held, Ints, Ring, Rows
from ..tail import Tail, newest_count
from .extra_data import ExtraData

__all__ = ["Buffer"]

Batch = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]

_ONE = ("action", "reward", "done")
_SAVED = {"states", "n_frames", "idx", *(f"{name}s" for name in _ONE)}


def _extra_field(given: Any) -> Field:
    if isinstance(given, Field):
        return given
    return Field(given if isinstance(given, tuple) else (), "int64")


class Buffer:
    """Transitions of one agent, in the order of its steps, in shared memory.

    An episode ends where `done` is true. The interface has no truncation: mark a truncated episode as done too, or
    windows continue into the next one. One process adds: the first to do so, until it calls `release`, closes the
    buffer or ends. Any number of processes sample.

    Args:
        capacity: rows, at least 1.
        obs_shape: shape of one observation.
        n_frames: observations in each sampled state.
        extra_fields: further fields: a Field; a tuple for an int64 field of that shape; anything else for an int64.

    Attributes:
        capacity, obs_shape, n_frames: as given.
        extra_data: copies of the extra fields by position, each [capacity, *shape], made where one is looked up.

    Raises: ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the buffer.
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
        extras = {name: _extra_field(given) for name, given in extra_fields.items()}
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
            shared=False,
        )
        self.extra_data = ExtraData(self._ring, extras)
        self._extra_fields = extras
        self._nothing = {name: np.zeros(field.shape, field.dtype) for name, field in extras.items()}
        self._span = np.arange(n_frames + 1)
        self._tail: Tail | None = None
        invalidate_after_fork(self)

    def add(self, obs: Any, action: Any, reward: float, done: bool, **kwargs: Any) -> None:
        """Adds one step.

        Args:
            obs: the observation before the action, obs_shape; leading axes of length one are dropped.
            action: an integer. reward: of the action. done: whether the episode ended with it.
            kwargs: the extra fields; missing ones are zero.

        Raises:
            ValueError, TypeError: a field is unknown, or of another shape or kind; nothing was added.
            LaneBusy: another process adds to this buffer and has not released it.
        """
        tail = self._tail
        if tail is None or not tail.is_current():
            tail = self._tail = Tail(self._ring)
        if self._extra_fields or kwargs:
            self._stage_extras(tail, kwargs)
        tail.add(obs, action, reward, done)

    def _stage_extras(self, tail: Tail, values: Mapping[str, Any]) -> None:
        if not values.keys() <= self._extra_fields.keys():
            raise names_error("extra fields", self._extra_fields, values)
        for name, nothing in self._nothing.items():
            tail.put(name, values.get(name, nothing))

    def add_empty(self) -> None:
        """Adds n_frames - 1 rows of zeros, which keep one episode's frames out of the next one's states."""
        if self.n_frames > 1:
            counts = np.zeros(self.n_frames - 1, np.int64)
            counts[0] = 1
            self._append(self._zeros(self.n_frames - 1), counts)

    def add_from_buffer(self, buffer: Any) -> None:
        """Adds the rows of another buffer, of this class or of sorrel's: the first `buffer.size` positions.

        Raises: ValueError: its observations have another shape, or it has an extra field that this one lacks.
        """
        if tuple(buffer.obs_shape) != tuple(self.obs_shape):
            raise ValueError(f"obs: expected observations {tuple(self.obs_shape)}, got {tuple(buffer.obs_shape)}")
        if not buffer.extra_data.keys() <= self._extra_fields.keys():
            raise names_error("extra fields", self._extra_fields, buffer.extra_data)
        size = min(int(buffer.size), self.capacity)
        if size:
            columns = {"obs": buffer.states, "action": buffer.actions, "reward": buffer.rewards, "done": buffer.dones}
            self._add_columns({**columns, **buffer.extra_data}, 0, size)
            self.release()

    def sample(self, batch_size: int) -> Batch:
        """Windows of n_frames steps and the observation after them, each drawn at most once.

        Draws from NumPy's global generator. If the windows across the write head leave too few others, their
        replacements may repeat.

        Returns: states and next_states float32 [batch_size, n_frames * obs], actions int64, rewards, dones float32 and
            valid float64, each [batch_size, 1]; valid is 0 where an episode ended among the first n_frames - 1 steps.

        Raises:
            ValueError: batch_size is not from 1 to the len - n_frames - 1 windows that can be drawn.
            NotEnoughData: the ring holds no whole window.
        """
        batch_size = whole_number("batch_size", batch_size, 1)
        tail, seen = self._current_tail(), self._window()
        population = max(1, self._size(seen) - self.n_frames - 1)
        if batch_size > population:
            raise ValueError(f"batch_size: expected at most {population} while {len(self)} rows are held, "
                             f"got {batch_size}")  # fmt: skip
        last = self.n_frames - 1
        if tail is not None and seen.hi - seen.lo == seen.stored:
            at = self._starts(seen, population, batch_size)[:, np.newaxis] + self._span
            obs, done = tail.take("obs", at), tail.take("done", at[:, :-1])
            action, reward = tail.take("action", at[:, last]), tail.take("reward", at[:, last])
        else:
            rows = self._whole(seen, population, batch_size)
            obs, done = rows["obs"], rows["done"][:, :-1]
            action, reward = rows["action"][:, last], rows["reward"][:, last]
        return (
            obs[:, :-1].reshape(batch_size, -1),
            action.reshape(batch_size, 1),
            reward.reshape(batch_size, 1),
            obs[:, 1:].reshape(batch_size, -1),
            done[:, last:],
            np.subtract(1.0, done[:, :last].any(axis=1, keepdims=True)),
        )

    def put_rows(self, columns: Mapping[str, NDArray[Any]], size: int) -> None:
        """Appends rows, at most `capacity`, of another buffer whose `size` is given, and which is this one's then.

        Args:
            columns: obs, action, reward, done and the extra fields, each [rows, *shape].
        """
        rows = len(columns["obs"])
        fitted = {name: as_field(name, Field((rows, *one.shape), one.dtype), columns[name])
                  for name, one in self._ring.fields.items() if name != "count"}  # fmt: skip
        self._ring.append({**fitted, "count": np.full(rows, size)}, rows)
        self._tail = None

    def positions(self) -> Ints:
        """The positions that hold rows, oldest first: int64 [rows]."""
        window = self._window()
        found: Ints = (
            np.arange(window.stored) + (window.head if window.stored == self.capacity else 0)
        ) % self.capacity
        return found

    def clear(self) -> None:
        """Deletes every row, for all processes."""
        self._ring.clear()

    def getidx(self) -> int:
        """The next position to be written."""
        return self.idx

    def last_transition(self, offset: int = 0) -> tuple[int, float, bool] | None:
        """The (action, reward, done) of the row `offset` rows before the newest; None if there is no such row."""
        tail = self._tail
        if tail is not None and tail.is_current():
            return tail.transition(offset)
        window = self._ring.window()
        ticket = window.hi - 1 - offset
        if self._size(window) <= offset or ticket < window.lo:
            return None
        rows, ok = self._ring.gather(np.array([ticket]), *_ONE)
        if ok is not None:
            return None
        action, reward, done = (rows[name][0] for name in _ONE)
        return int(action), float(reward), bool(done)

    def current_state(self) -> NDArray[np.float32]:
        """The last n_frames - 1 observations, oldest first: float32 [n_frames - 1, *obs_shape].

        If fewer were added since the ring was cleared, zeros take their places.
        """
        tail = self._tail
        if tail is not None and tail.is_current():
            newest = tail.observations(self.n_frames - 1)
            if newest is not None:
                return newest
        window = self._ring.window()
        held = min(self.n_frames - 1, window.hi - window.lo)
        state = np.zeros((self.n_frames - 1, *self.obs_shape), np.float32)
        rows, ok = self._ring.gather(np.arange(window.hi - held, window.hi), "obs")
        whole = slice(None) if ok is None else ok
        state[len(state) - held :][whole] = rows["obs"][whole]
        return state

    @property
    def idx(self) -> int:
        """The next position to be written."""
        return self._window().head

    @property
    def size(self) -> int:
        """Rows held, in sorrel's count: `add_empty` counts as one."""
        return self._size(self._window())

    @property
    def states(self) -> NDArray[np.float32]:
        """A copy of all observations by position: float32 [capacity, *obs_shape], zeros at empty positions."""
        return self._ring.snapshot("obs")["obs"]

    @property
    def actions(self) -> NDArray[np.int64]:
        """A copy of all actions by position: int64 [capacity]."""
        return self._ring.snapshot("action")["action"]

    @property
    def rewards(self) -> NDArray[np.float32]:
        """A copy of all rewards by position: float32 [capacity]."""
        return self._ring.snapshot("reward")["reward"]

    @property
    def dones(self) -> NDArray[np.float32]:
        """A copy of all ends of episodes by position: float32 [capacity]."""
        return self._ring.snapshot("done")["done"]

    def save(self, output_file: str | Path) -> None:
        """Writes the rows to a compressed .npz file, which sorrel's Buffer.load can read too."""
        found = self._ring.snapshot()
        columns: dict[str, Any] = {f"{name}s": found[name] for name in _ONE}
        columns.update((name, found[name]) for name in self._extra_fields)
        np.savez_compressed(Path(output_file), states=found["obs"], n_frames=self.n_frames, idx=self.idx, **columns)

    @classmethod
    def load(cls, input_file: str | Path) -> Buffer:
        """A full buffer with the rows of a file of `save` or of sorrel, each at its position.

        Raises: ValueError: it is another kind of file. OSError: it cannot be read.
        """
        columns = read_npz(Path(input_file))
        if not {*columns} >= _SAVED:
            raise ValueError(f"input_file: expected one with {sorted(_SAVED)}, got {sorted(columns)}")
        n_frames, idx = int(columns.pop("n_frames")), int(columns.pop("idx"))
        rows = {"obs": columns.pop("states"), **{name: columns.pop(f"{name}s") for name in _ONE}, **columns}
        capacity = len(rows["obs"])
        shapes = {name: array.shape[1:] for name, array in columns.items()}
        buffer = cls(capacity, rows["obs"].shape[1:], n_frames, **shapes)
        buffer._add_columns(rows, 0, capacity)
        if idx:  # adds the rows before the write head again, to move it there
            buffer._add_columns(rows, 0, idx)
        buffer.release()
        return buffer

    def release(self) -> None:
        """Lets another process add to the buffer; harmless if repeated, or in a process that never added."""
        self._tail = None
        self._ring.release()

    def close(self) -> None:
        """Releases the memory; the end of the buffer's last reference does so too."""
        self._tail = None
        self._ring.close()

    def forked(self) -> None:
        """In a forked child: the parent remains the process that adds."""
        self._tail = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_tail": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        invalidate_after_fork(self)

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int | slice) -> tuple[Any, Any, Any, Any]:
        """The state, action, reward and done at a position or a slice of positions."""
        found = self._ring.snapshot()
        return found["obs"][idx], found["action"][idx], found["reward"][idx], found["done"][idx]

    def __repr__(self) -> str:
        return f"Buffer(capacity={self.capacity}, obs_shape={self.obs_shape})"

    def _zeros(self, count: int) -> dict[str, NDArray[Any]]:
        return {name: np.zeros((count, *field.shape), field.dtype) for name, field in self._ring.fields.items()}

    def _append(self, rows: dict[str, NDArray[Any]], counts: Ints) -> None:
        self._ring.append({**rows, "count": newest_count(self._ring) + np.cumsum(counts)}, len(counts))
        self._tail = None

    def _add_columns(self, columns: Mapping[str, Any], first: int, last: int) -> None:
        """Adds rows first to last - 1 of arrays of at least that length."""
        rows = self._zeros(last - first)
        for name, array in columns.items():
            field = self._ring.fields[name]
            rows[name] = as_field(name, Field((last - first, *field.shape), field.dtype), array[first:last])
        self._append(rows, np.ones(last - first, np.int64))

    def _current_tail(self) -> Tail | None:
        """This process's view of the ring, if it is the process that adds."""
        return self._tail if self._tail is not None and self._tail.is_current() else None

    def _window(self) -> Held:
        tail = self._current_tail()
        return self._ring.window() if tail is None else tail.window()

    def _size(self, window: Held) -> int:
        tail = self._current_tail()
        if tail is not None:
            return min(tail.count, window.stored)
        if not window.stored:
            return 0
        newest, ok = self._ring.gather(np.array([window.hi - 1]), "count")
        return min(int(newest["count"][0]), window.stored) if ok is None else window.stored

    def _crosses(self, window: Held, starts: Ints) -> NDArray[np.bool_]:
        """Whether the windows that begin at these positions cross the write head, or reach an empty position."""
        if window.stored < self.capacity:
            return starts + self.n_frames >= window.stored
        before_head = (window.head - 1 - starts).view(np.uint64)  # negative from the head on, so huge as unsigned
        return before_head < self.n_frames

    def _starts(self, window: Held, population: int, count: int) -> Ints:
        """Positions of whole windows; the same draws as sorrel's where possible."""
        starts: Ints = np.random.choice(population, count, replace=False)
        if window.stored == self.capacity or population + self.n_frames > window.stored:
            bad = self._crosses(window, starts).nonzero()[0]
            if len(bad):
                starts[bad] = self._others(window, population, len(bad), starts)
        return starts

    def _whole(self, seen: Held, population: int, count: int) -> Rows:
        """Windows that no writer overwrote during the copy, [count, n_frames + 1, *shape] of each field."""
        drawn: list[Ints] = []

        def draw(missing: int) -> Ints:
            window = self._ring.window() if drawn else seen
            if drawn:
                starts = self._others(window, population, missing, np.concatenate(drawn))
            else:
                starts = self._starts(window, population, missing)
            drawn.append(starts)
            return window.tickets(starts)[:, np.newaxis] + self._span

        return self._ring.whole(count, draw, "obs", *_ONE)[0]

    def _others(self, window: Held, population: int, count: int, taken: Ints) -> Ints:
        """Starts of held windows; repeats those already taken only if there are too few others.

        Raises: NotEnoughData: there is no such window.
        """
        free = ~self._crosses(window, np.arange(population))
        if not free.any():
            raise NotEnoughData(f"sample: expected at least {self.n_frames + 2} rows, got {window.stored}")
        others = free.copy()
        others[taken] = False
        enough = np.count_nonzero(others) >= count
        places = (others if enough else free).nonzero()[0]
        picks = np.random.randint(0, len(places), count)
        if enough and len({*picks.tolist()}) < count:
            picks = np.random.choice(len(places), count, replace=False)  # slow: it permutes all of them
        return places[picks]
