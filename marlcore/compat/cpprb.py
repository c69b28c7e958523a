"""cpprb's multi-process buffers in marlcore's shared memory: change the import, and a dead process blocks no other.

    from marlcore.compat.cpprb import MPPrioritizedReplayBuffer, MPReplayBuffer

Methods, results, shapes, dtypes and the uniform draws from NumPy's seed equal those of cpprb 11, which is not needed;
docs/drop-ins.md lists the differences.
"""

from collections.abc import Iterable, Mapping
from multiprocessing import ProcessError, managers
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from ..checks import brief
from ..declared import Number
from ..replay import Prioritized
from ..spec import Field
from .priorities import RingPriorities
from .ring import Held, Ints, Ring, Rows, whole_number
from .ring_lane import MARK

_BACKENDS = ("sharedctypes", "SharedMemory")
_POSITIVE = Number(0)


class MPReplayBuffer:
    """A ring of transitions that any process may add to and sample from; pass the object itself to a process.

    Args:
        size: transitions held, at least 1.
        env_dict: each field's name, and a dict with its "shape" (default 1) and "dtype" (default `default_dtype`).
        default_dtype: NumPy dtype of fields without their own; float32 by default.
        logger, ctx, backend: accepted for compatibility.

    Raises: ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the buffer.
        multiprocessing.ProcessError: ctx is a manager that has shut down.
    """

    _own_fields: Mapping[str, Field] = {}  # of the rows besides those of env_dict

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        default_dtype: DTypeLike | None = None,
        logger: Any = None,
        ctx: Any = None,
        backend: str = "sharedctypes",
    ) -> None:
        if backend not in _BACKENDS:
            raise ValueError(f"backend: expected one of {_BACKENDS}, got {backend!r}")
        if not env_dict:
            raise ValueError(f"env_dict: expected a dict of at least one field, got {env_dict!r}")
        known: Any = managers  # its type stubs lack the state
        if isinstance(ctx, known.BaseManager) and ctx._state.value == known.State.SHUTDOWN:
            raise ProcessError("ctx: expected a context or a manager, got a manager that has shut down")
        default = np.dtype(np.float32 if default_dtype is None else default_dtype)
        self._fields = {name: _field(name, about, default) for name, about in env_dict.items()}
        self._shapes = {name: (-1, *field.shape) for name, field in self._fields.items()}
        self._ring = Ring({**self._fields, **self._own_fields}, whole_number("size", size, 1), shared=True)

    def add(self, /, **kwargs: ArrayLike) -> int:
        """Adds one or more steps, all or none.

        Args:
            kwargs: every field of env_dict, [steps, *shape], or [*shape] for one step; NumPy converts the dtypes.

        Returns: the first step's position in the ring.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has another width or number of steps, or there are more steps than the buffer holds.
        """
        rows, steps = self._rows(kwargs)
        return self._append(rows, steps)

    def sample(self, batch_size: int) -> Rows:
        """Transitions drawn uniformly, with replacement, by NumPy's global generator.

        Returns: each field, [batch_size, *shape].

        Raises:
            ValueError: the buffer is empty, or batch_size is not an integer of at least 0.
            MarlcoreError: a writer overwrote every draw, or died while it overwrote the whole ring.
        """
        rows, _ = self._ring.whole(whole_number("batch_size", batch_size, 0), self._draw)
        return {name: rows[name][:, 0] for name in self._fields}

    def get_all_transitions(self, shuffle: bool = False) -> Rows:
        """Every transition held whole, in order of position, or shuffled by NumPy's generator."""
        window = self._ring.window()
        positions = np.arange(window.stored)
        if shuffle:
            np.random.shuffle(positions)
        rows, ok = self._ring.gather(window.tickets(positions))
        return {name: rows[name] if ok is None else rows[name][ok] for name in self._fields}

    def _encode_sample(self, idx: Iterable[int]) -> Rows:
        """The transitions at positions, as in cpprb: each field [n, *shape]; zeros at empty positions.

        Raises: IndexError: a position outside the buffer.
        """
        positions = np.array(idx, np.int64)
        size = self._ring.capacity
        bad = positions[(positions < -size) | (positions >= size)]
        if bad.size:
            raise IndexError(f"idx: expected positions from {-size} to {size - 1}, got {bad[0]}")
        return self._ring.at(positions % size, *self._fields)

    def clear(self) -> None:
        """Deletes every transition, for all processes; the next one is added at position 0.

        A concurrent `add` of another process is deleted or kept as a whole.
        """
        self._ring.clear()

    def get_stored_size(self) -> int:
        """Transitions stored."""
        return self._ring.window().stored

    def get_buffer_size(self) -> int:
        """The largest number of transitions."""
        return self._ring.capacity

    def get_next_index(self) -> int:
        """The next position to be written."""
        return self._ring.window().head

    def on_episode_end(self) -> None:
        """Does nothing, as in cpprb."""

    def is_Nstep(self) -> bool:  # noqa: N802
        """False, as in cpprb."""
        return False

    def close(self) -> None:
        """Releases the memory; the end of the buffer's last reference does so too."""
        self._ring.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self._ring.capacity}, fields={list(self._fields)})"

    def _rows(self, values: Mapping[str, Any]) -> tuple[Rows, int]:
        """Each field of `values` as [steps, *shape], and the number of steps."""
        rows: Rows = {}
        for name, shape in self._shapes.items():
            if name not in values:
                raise KeyError(f"{name}: expected a value for each of {list(self._fields)}, got {list(values)}")
            array = np.asarray(values[name])
            try:
                rows[name] = array.reshape(shape)
            except ValueError:
                raise ValueError(f"{name}: expected steps of shape {shape[1:]}, got shape {array.shape}") from None
        steps = {len(array) for array in rows.values()}
        if len(steps) > 1:
            counts = {name: len(array) for name, array in rows.items()}
            raise ValueError(f"steps: expected the same number of each field, got {counts}")
        return rows, steps.pop()

    def _append(self, rows: Rows, steps: int) -> int:
        if steps > self._ring.capacity:
            raise ValueError(f"steps: expected at most the buffer's size {self._ring.capacity}, got {steps}")
        if not steps:
            return self.get_next_index()
        return self._ring.position(self._ring.append(rows, steps))

    def _draw(self, count: int) -> Ints:
        """Tickets to sample, [count, 1]; none if every row is being overwritten."""
        window = self._ring.window()
        _check_not_empty(window)
        if window.hi - window.lo == window.stored:
            return window.tickets(np.random.randint(0, window.stored, (count, 1)))
        if window.hi == window.lo:
            return np.zeros((0, 1), np.int64)
        return np.random.randint(window.lo, window.hi, (count, 1))


class MPPrioritizedReplayBuffer(MPReplayBuffer):
    """MPReplayBuffer sampled in proportion to (priority + eps) ** alpha (Schaul et al. 2016, section 3.3).

    The priorities belong to the learner, the process that samples: before each sample or update, it reads those that
    `add` stored with the rows.

    Args:
        size, env_dict: see MPReplayBuffer.
        alpha: exponent of the priorities, at least 0.
        eps: added to each priority, at least 0.
        kwargs: further arguments of MPReplayBuffer.

    Raises: see MPReplayBuffer.
    """

    _own_fields: Mapping[str, Field] = {"priorities": Field((), "float32")}  # NaN if add got none

    def __init__(
        self,
        size: int,
        env_dict: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        alpha: float = 0.6,
        eps: float = 1e-4,
        **kwargs: Any,
    ) -> None:
        if env_dict and "priorities" in env_dict:
            raise ValueError("env_dict: 'priorities' is the name of an argument of add")
        super().__init__(size, env_dict, **kwargs)
        self._alpha, self._eps = _POSITIVE.checked("alpha", alpha), _POSITIVE.checked("eps", eps)
        limit = Prioritized(self._alpha, epsilon=self._eps).limit(self._ring.capacity)
        self._most = min(limit, float(np.finfo(np.float32).max))
        if self._most < 1.0:
            raise ValueError(f"alpha, eps: expected a finite sum of (1 + eps) ** alpha, got alpha={alpha}, eps={eps}")
        self._learner: RingPriorities | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_learner": None}

    def add(self, /, *, priorities: ArrayLike | None = None, **kwargs: ArrayLike) -> int:
        """Adds one or more steps, all or none.

        Args:
            priorities: one per step, at least 0, and with a finite sum of all (priority + eps) ** alpha; by default
                the greatest priority so far.
            kwargs: see MPReplayBuffer.

        Returns, raises: see MPReplayBuffer; ValueError also for a wrong number of priorities or one out of range.
        """
        rows, steps = self._rows(kwargs)
        if priorities is None:
            rows["priorities"] = np.full(steps, np.nan, np.float32)
        else:
            rows["priorities"] = self._checked(priorities, steps)
        return self._append(rows, steps)

    def sample(self, batch_size: int, beta: float = 0.4) -> Rows:
        """Transitions drawn in proportion to their priorities, with replacement, by NumPy's global generator.

        Args:
            batch_size: rows.
            beta: exponent of the importance weights.

        Returns: each field, [batch_size, *shape]; "weights" float32, "indexes" uint64, each [batch_size]. A weight is
            (p / least p of all stored) ** -beta.

        Raises: see MPReplayBuffer; ValueError also if no transition has a priority above 0.
        """
        count = whole_number("batch_size", batch_size, 0)
        _POSITIVE.checked("beta", beta)
        while True:
            learner = self._caught_up()
            rows, tickets = self._ring.whole(count, self._draw, *self._fields)
            if learner is self._learner:  # otherwise another process cleared the ring between two draws
                break
        positions = learner.mark_sampled(tickets[:, 0])
        sample = {name: rows[name][:, 0] for name in self._fields}
        sample["weights"] = learner.weights(positions, beta)
        sample["indexes"] = positions.astype(np.uint64)
        return sample

    def update_priorities(self, indexes: ArrayLike, priorities: ArrayLike) -> None:
        """Sets new priorities for positions from `sample`; it skips those overwritten or added since then.

        Args:
            indexes: positions, [n] or any shape with n elements. priorities: one per index, in the range of `add`'s.

        Raises:
            TypeError: indexes are not integers, or priorities are None.
            ValueError: the numbers of priorities and indexes differ, or one is out of range.
        """
        if indexes is None or priorities is None:
            raise TypeError(f"indexes, priorities: expected arrays, got {brief(indexes)} and {brief(priorities)}")
        positions = np.ravel(np.asarray(indexes))
        if len(positions) and positions.dtype.kind not in "iu":
            raise TypeError(f"indexes: expected integers, got dtype {positions.dtype}")
        checked = self._checked(priorities, len(positions))
        if len(positions) and positions.min() < 0:
            raise ValueError(f"indexes: expected positions of at least 0, got {positions.min()}")
        learner = self._caught_up()
        known = positions < learner.window.stored
        learner.update(positions[known].astype(np.int64), checked[known])
        self._ring.lane.words.store(MARK, learner.packed_greatest())

    def get_max_priority(self) -> float:
        """The greatest priority since the buffer was cleared, at least 1.

        Outside the learner's process: the greatest of the rows held and of the learner's last update.
        """
        learner = self._caught_up()
        return max(learner.greatest, learner.unpacked_greatest(self._ring.lane.words.load(MARK)))

    def _draw(self, count: int) -> Ints:
        learner = self._caught_up()
        _check_not_empty(learner.window)
        if learner.has_mass:
            return learner.draw(count)[:, np.newaxis]
        if self._ring.window().lo < learner.window.hi:  # rows that were whole when their priorities were read
            raise ValueError("sample: expected a transition with a priority + eps above 0, got none")
        return np.zeros((0, 1), np.int64)

    def _checked(self, priorities: ArrayLike, count: int) -> NDArray[np.float32]:
        with np.errstate(over="ignore"):
            array = np.ravel(np.asarray(priorities, np.float32))
        if len(array) != count:
            raise ValueError(f"priorities: expected {count}, one of each step, got {len(array)}")
        bad = array[~((array >= 0) & (array.astype(np.float64) <= self._most))]
        if len(bad):
            raise ValueError(f"priorities: expected numbers from 0 to {self._most:.6g}, got {brief(bad.tolist())}")
        return array

    def _caught_up(self) -> RingPriorities:
        """The learner's priorities, updated with every row committed so far."""
        window = self._ring.window()
        learner = self._learner
        if learner is None or learner.window.base != window.base:
            learner = self._learner = RingPriorities(window, self._alpha, self._eps)
        pending = np.arange(max(learner.window.hi, window.hi - window.stored), window.hi)
        if len(pending):
            rows, ok = self._ring.gather(pending, "priorities")
            whole = np.ones(len(pending), np.bool_) if ok is None else ok
            learner.append(window.positions(pending), rows["priorities"], whole)
        learner.window = window
        return learner


def _check_not_empty(window: Held) -> None:
    if not window.stored:
        raise ValueError("sample: expected at least one stored transition, got none")


def _field(name: str, about: Mapping[str, Any], default: np.dtype[Any]) -> Field:
    if not isinstance(about, Mapping):
        raise TypeError(f"env_dict[{name!r}]: expected a dict with shape and dtype, got {brief(about)}")
    shape = about.get("shape", 1)
    dtype = about.get("dtype")
    try:
        field = Field(shape, default.name if dtype is None else np.dtype(dtype).name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"env_dict[{name!r}]: {error}") from None
    if not field.shape:
        raise ValueError(f"env_dict[{name!r}]: expected a shape of at least one axis, got {shape!r}")
    return field
