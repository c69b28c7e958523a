"""A replay in shared memory with the interface of sorrel's Buffer; docs/drop-ins.md lists the differences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import check_type, check_whole, names_error
from ...errors import NotEnoughData
from ...npz import read_npz
from ...spec import Field, as_field
from ..ring import Held, Ints, Ring, whole_number
from .adder import SCALARS, Adder

Array = NDArray[Any]
Batch = tuple[Array, Array, Array, Array, Array, Array]
Sequences = tuple[Array, Array, Array, Array, Array, Array, Array | None]

_SORREL_NAMES = {"obs": "states", "action": "actions", "reward": "rewards", "done": "dones"}


def columns_of(buffer: Any) -> dict[str, Any]:
    """Returns the fields, each [capacity, *shape], of sorrel's buffer or marlcore's, by their names in a ring."""
    return {**{name: getattr(buffer, theirs) for name, theirs in _SORREL_NAMES.items()}, **buffer.extra_data}


def _snapshot_of(name: str, described: str) -> Any:
    def snapshot(buffer: Ring) -> NDArray[Any]:
        return buffer.snapshot(name)[name]

    return property(snapshot, doc=f"A read-only copy of all {described} by position, with zeros at empty positions.")


class Buffer(Ring):
    """Transitions of one agent, in the order of its steps, shared with every process that gets the buffer.

    An episode ends where `done` is true; mark a truncated episode as done, too. Only one process may add: the first
    that does, until it calls `release`, closes the buffer or ends. Any number of processes may sample.

    Args:
        capacity: rows, at least n_frames.
        obs_shape: shape of one observation.
        n_frames: observations in each sampled state.
        extra_fields: further fields by name: a Field; a tuple, the shape of an int64 field; or any other value, for an
            int64 scalar.

    Attributes:
        capacity, obs_shape, n_frames: as given.

    Raises: ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the buffer.
    """

    _OWN: Mapping[str, Any] = {**Ring._OWN, "_adder": None}
    _adder: Adder | None

    def __init__(self, capacity: int, obs_shape: Sequence[int], n_frames: int = 1, **extra_fields: Any) -> None:
        n_frames = whole_number("n_frames", n_frames, 1)
        check_whole("capacity", capacity, n_frames)
        check_type("obs_shape", obs_shape, Iterable, expected="a sequence of integers")
        reserved = sorted(_SORREL_NAMES.keys() & extra_fields.keys())
        if reserved:
            raise ValueError(f"extra_fields: {reserved[0]!r} is the name of a field that every row has")
        self.obs_shape = obs_shape
        self.n_frames = n_frames
        extras = {
            name: field if isinstance(field, Field) else Field(field if isinstance(field, tuple) else (), "int64")
            for name, field in extra_fields.items()
        }
        obs, number = Field(tuple(obs_shape), "float32"), Field((), "float32")
        fields = {"obs": obs, "action": Field((), "int64"), "reward": number, "done": number, **extras}
        self._extras = {name: np.zeros(field.shape, field.dtype) for name, field in extras.items()}
        self._span = np.arange(n_frames + 1)
        super().__init__(fields, capacity, shared=False)

    def add(self, obs: Any, action: Any, reward: float, done: bool, **kwargs: Any) -> None:
        """Adds one step.

        Args:
            obs: the observation before the action, obs_shape; leading axes of length one are dropped.
            action: an integer. reward: the action's reward. done: whether the episode ended with the action.
            kwargs: the extra fields; missing ones are zero.

        Raises:
            ValueError, TypeError: a field is unknown, or has another shape or kind; nothing was added.
            LaneBusy: another process adds to this buffer and has not released it.
        """
        adder = self._adder
        if adder is None:
            adder = self._adder = Adder(self)
        if self._extras or kwargs:
            if not kwargs.keys() <= self._extras.keys():
                raise names_error("extra fields", self._extras, kwargs)
            for name, zeros in self._extras.items():
                adder.put(name, kwargs.get(name, zeros))
        adder.add(obs, action, reward, done)

    def add_empty(self) -> None:
        """Adds n_frames - 1 rows of zeros, so that the next episode's states have no frames of this one."""
        if self.n_frames > 1:
            self.put_rows({}, self.n_frames - 1, self._count[0] + 1)

    def add_from_buffer(self, buffer: Any) -> None:
        """Adds the rows at the first `buffer.size` positions of another buffer, which may be sorrel's.

        Raises: ValueError: the buffers' observations differ in shape, or this buffer lacks a field of the other.
        """
        if tuple(buffer.obs_shape) != tuple(self.obs_shape):
            raise ValueError(f"obs: expected observations {tuple(self.obs_shape)}, got {tuple(buffer.obs_shape)}")
        if not buffer.extra_data.keys() <= self._extras.keys():
            raise names_error("extra fields", self._extras, buffer.extra_data)
        size = min(int(buffer.size), self.capacity)
        if size:
            self.put_rows(columns_of(buffer), size, self._count[0] + size)
            self.release()

    def sample(self, batch_size: int) -> Batch:
        """Draws windows of n_frames steps and the next observation, by NumPy's global generator.

        Windows that cross the write head are drawn again. No window is drawn twice if there are enough others.

        Returns: (states, actions, rewards, next_states, dones, valid): states and next_states float32 [batch_size,
            n_frames * obs]; the others [batch_size, 1]: actions int64, rewards and dones float32, and valid float64,
            which is 0 where an episode ended among the first n_frames - 1 steps.

        Raises:
            ValueError: batch_size is below 1, or above the number of windows, len - n_frames - 1.
            NotEnoughData: the ring holds no whole window.
        """
        rows = self._windows(batch_size, "obs", *SCALARS)
        last = self.n_frames - 1
        states, next_states, done, valid = self._of_windows(rows)
        return states, rows["action"][:, last:-1], rows["reward"][:, last:-1], next_states, done, valid

    def sample_transformer(self, batch_size: int) -> Sequences:
        """Draws windows as `sample` does, but returns the actions of all steps, like sorrel's TransformerBuffer.

        Returns: (states, actions, next_actions, next_states, dones, valid, agent_ids): actions int64 and next_actions
            float32 (one step later), [batch_size, n_frames]; agent_ids [batch_size], the field of this name at each
            window's first step, or None without the field; the others as in `sample`.

        Raises: see `sample`.
        """
        ids = [name for name in ("agent_ids",) if name in self._extras]
        rows = self._windows(batch_size, "obs", "action", "done", *ids)
        states, next_states, done, valid = self._of_windows(rows)
        actions = rows["action"]
        agents = rows["agent_ids"][:, 0] if ids else None
        return states, actions[:, :-1], actions[:, 1:].astype(np.float32), next_states, done, valid, agents

    def _of_windows(self, rows: Mapping[str, NDArray[Any]]) -> tuple[NDArray[Any], ...]:
        """Returns states, next_states, dones and valid (see `sample`) of windows [batch, n_frames + 1, ...]."""
        obs, done, batch, last = rows["obs"], rows["done"], len(rows["obs"]), self.n_frames - 1
        valid = np.subtract(1.0, done[:, :last].any(axis=1, keepdims=True))
        return obs[:, :-1].reshape(batch, -1), obs[:, 1:].reshape(batch, -1), done[:, last:-1], valid

    def _windows(self, batch_size: int, *names: str) -> dict[str, NDArray[Any]]:
        """Draws windows; returns the named fields, each [batch_size, n_frames + 1, *shape]; see `sample`."""
        batch_size = whole_number("batch_size", batch_size, 1)
        seen = self.window()
        population = max(1, self._size(seen) - self.n_frames - 1)
        if batch_size > population:
            raise ValueError(f"batch_size: expected at most {population} while {len(self)} rows are held, "
                             f"got {batch_size}")  # fmt: skip
        drawn: list[Ints] = []

        def draw(missing: int) -> Ints:
            if drawn:
                window = self.window()
                starts = self._others(window, population, missing, np.concatenate(drawn))
            else:
                window, starts = seen, np.random.choice(population, missing, replace=False)  # sorrel's own draws
                bad = self._crosses(window, starts).nonzero()[0]
                if len(bad):
                    starts[bad] = self._others(window, population, len(bad), starts)
            drawn.append(starts)
            return window.tickets(starts)[:, np.newaxis] + self._span

        return self.whole(batch_size, draw, *names)[0]

    def gather(self, tickets: Ints, *names: str) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_] | None]:
        """Does `Ring.gather` by NumPy, since loading a Numba kernel takes 0.4 s, a tenth of a short experiment."""
        lane, rows = self.lane, {}
        for name in names or self._names:
            column = lane.column(lane.places[name])[0]
            rows[name] = column[tickets % len(column)]
        return rows, lane.whole(np.ascontiguousarray(tickets, np.int64))

    def put_rows(self, columns: Mapping[str, Any], rows: int, count: int) -> None:
        """Appends the first `rows` rows of `columns`, and zeros in other fields; sets sorrel's row count to `count`."""
        fitted: dict[str, Any] = dict.fromkeys(self.fields, 0)
        for name, array in columns.items():
            field = self.fields[name]
            fitted[name] = as_field(name, Field((rows, *field.shape), field.dtype), array[:rows])
        self._count[0] = count  # first: see Adder.add
        self.append(fitted, rows)

    def fill(self, columns: Mapping[str, Any], idx: int, size: int) -> None:
        """Adds the newest of sorrel's `size` rows, which end at `idx`; with equal capacities, rows keep positions."""
        capacity = len(columns["obs"])
        parts = [range(idx)]  # if the ring is full, added a second time to move the write head there
        if idx < size:  # the ring is full: before, size is at most idx, since sorrel counts `add_empty` as one row
            parts.insert(0, range(idx if self.capacity > capacity else 0, capacity))
        for rows in (part[-self.capacity :] for part in parts):
            if rows:
                newest = {name: np.asarray(array)[rows.start : rows.stop] for name, array in columns.items()}
                self.put_rows(newest, len(rows), size)
        self.release()

    def positions(self) -> Ints:
        """Returns the positions that hold rows, oldest first: int64 [rows]."""
        window = self.window()
        return window.positions(np.arange(window.hi - window.stored, window.hi))

    def clear(self) -> None:
        """Deletes every row, for all processes."""
        super().clear()
        self._count[0] = 0

    def getidx(self) -> int:
        """Returns the next position to be written."""
        return self.idx

    def last_transition(self, offset: int = 0) -> tuple[int, float, bool] | None:
        """Returns (action, reward, done) of the row `offset` rows before the newest; None if there is no such row."""
        if self._adder is not None:
            return self._adder.transition(offset)
        window = self.window()
        ticket = window.hi - 1 - offset
        if self._size(window) <= offset or ticket < window.lo:
            return None
        rows, ok = self.gather(np.array([ticket]), *SCALARS)
        if ok is not None:
            return None
        action, reward, done = (rows[name][0] for name in SCALARS)
        return int(action), float(reward), bool(done)

    def current_state(self) -> NDArray[np.float32]:
        """Returns the last n_frames - 1 observations, oldest first: float32 [n_frames - 1, *obs_shape].

        If fewer observations were added since the ring was cleared, zeros precede them.
        """
        newest = None if self._adder is None else self._adder.observations(self.n_frames - 1)
        if newest is not None:
            return newest
        window = self.window()
        count = min(self.n_frames - 1, window.hi - window.lo)
        state = np.zeros((self.n_frames - 1, *self.obs_shape), np.float32)
        rows, ok = self.gather(np.arange(window.hi - count, window.hi), "obs")
        whole = slice(None) if ok is None else ok
        state[len(state) - count :][whole] = rows["obs"][whole]
        return state

    @property
    def idx(self) -> int:
        """The next position to be written."""
        return self.window().head

    @property
    def size(self) -> int:
        """The number of rows, as sorrel counts them: `add_empty` counts as one row."""
        return self._size(self.window())

    states = _snapshot_of("obs", "observations: float32 [capacity, *obs_shape]")
    actions = _snapshot_of("action", "actions: int64 [capacity]")
    rewards = _snapshot_of("reward", "rewards: float32 [capacity]")
    dones = _snapshot_of("done", "ends of episodes: float32 [capacity]")

    @property
    def extra_data(self) -> Mapping[str, NDArray[Any]]:
        """The extra fields by position, each [capacity, *shape]; looking one up copies it."""
        return _ExtraData(self, self._extras)

    def save(self, output_file: str | Path) -> None:
        """Writes the rows to a compressed .npz file, which sorrel's Buffer.load can read, too."""
        columns = self.snapshot(*_SORREL_NAMES, *self._extras)
        named: dict[str, Any] = {_SORREL_NAMES.get(name, name): array for name, array in columns.items()}
        np.savez_compressed(Path(output_file), n_frames=self.n_frames, idx=self.idx, **named)

    @classmethod
    def load(cls, input_file: str | Path) -> "Buffer":
        """Creates a full buffer with the rows of a file that `save` or sorrel wrote, each at its position.

        Raises ValueError if the file is not such a file, OSError if it cannot be read.
        """
        extras = read_npz("input_file", input_file)
        needed = {"n_frames", "idx", *_SORREL_NAMES.values()}
        if not needed <= extras.keys():
            raise ValueError(f"input_file: expected arrays {sorted(needed)}, got {sorted(extras)}")
        columns = {name: extras.pop(theirs) for name, theirs in _SORREL_NAMES.items()}
        counts, capacity = [extras.pop(name) for name in ("n_frames", "idx")], len(np.atleast_1d(columns["obs"]))
        shapes = [array.shape for array in (*counts, columns["obs"])]
        if any(shapes[:2]) or not shapes[2]:
            raise ValueError(f"input_file: expected numbers n_frames and idx, and rows of states, got shapes {shapes}")
        n_frames, idx = map(int, counts)
        check_whole("input_file: n_frames", n_frames, 1, capacity)
        further = {name: array.shape[1:] for name, array in extras.items()}
        buffer = cls(capacity, columns["obs"].shape[1:], n_frames, **further)
        buffer.fill({**columns, **extras}, idx, capacity)
        return buffer

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: int | slice) -> tuple[Any, Any, Any, Any]:
        """Returns the state, action, reward and done at a position or a slice of positions."""
        rows = self.snapshot(*_SORREL_NAMES)
        return rows["obs"][idx], rows["action"][idx], rows["reward"][idx], rows["done"][idx]

    def __repr__(self) -> str:
        return f"Buffer(capacity={self.capacity}, obs_shape={self.obs_shape})"

    @property
    def _count(self) -> Any:
        """The count, in shared memory, of rows since the ring was cleared; `add_empty` counts as one row.

        If another process clears the ring during an `add`, the count may stay too high; `_size` limits it.
        """
        return self.lane.mark

    def _size(self, window: Held) -> int:
        return min(int(self._count[0]), window.stored)

    def _crosses(self, window: Held, starts: Ints) -> NDArray[np.bool_]:
        """Returns whether windows that begin at these positions cross the write head or reach an empty position."""
        if window.stored < self.capacity:
            return starts + self.n_frames >= window.stored
        before_head = (window.head - 1 - starts).view(np.uint64)  # from the head on negative, which becomes huge
        return before_head < self.n_frames

    def _others(self, window: Held, population: int, count: int, drawn: Ints) -> Ints:
        """Draws `count` starts of whole windows; repeats starts in `drawn` only if there are too few others."""
        free = ~self._crosses(window, np.arange(population))
        if not free.any():
            raise NotEnoughData(f"sample: expected at least {self.n_frames + 2} rows, got {window.stored}")
        others = free.copy()
        others[drawn] = False
        enough = np.count_nonzero(others) >= count
        places = (others if enough else free).nonzero()[0]
        picks = np.random.randint(0, len(places), count)
        if enough and len({*picks.tolist()}) < count:
            picks = np.random.choice(len(places), count, replace=False)  # slow, since it permutes all of them
        return places[picks]


@dataclass(eq=False)
class _ExtraData(Mapping[str, NDArray[Any]]):
    """A buffer's extra fields. Only looking one up copies it, since sorrel's agents test for names at each step."""

    _ring: Ring
    _names: Mapping[str, Any]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self._names:
            raise KeyError(name)
        return self._ring.snapshot(name)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
