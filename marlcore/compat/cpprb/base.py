"""cpprb's uniform buffer for several processes, and the base class of all buffers here: a ring of rows by position."""

from collections.abc import Iterable, Mapping
from multiprocessing import ProcessError, managers
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ...checks import check_type
from ...spec import Field
from ..ring import Held, Ints, Ring, Rows, whole_number

EnvDict: TypeAlias = Mapping[str, Mapping[str, Any]]  # by field: its shape and dtype
_BACKENDS = ("sharedctypes", "SharedMemory")


class RingBuffer:
    """A ring of transitions, sampled uniformly; `add` takes and `sample` returns the `fields`."""

    _own_fields: Mapping[str, Field] = {}  # stored in each row besides `fields`

    def __init__(self, ring: Ring, fields: Mapping[str, Field]) -> None:
        self._ring = ring
        self._fields = fields
        self._shapes = {name: (-1, *field.shape) for name, field in fields.items()}

    def add(self, /, **kwargs: ArrayLike) -> int | None:
        """Adds one or more steps: all of them, or none if an error is raised.

        Args:
            kwargs: each field of env_dict as [steps, *shape], or [*shape] for one step; NumPy converts the dtypes.

        Returns: the first step's position in the ring; None if Nstep holds back every step.

        Raises:
            KeyError: a field is missing.
            ValueError: a field has a wrong shape, or fields differ in their number of steps. A buffer for several
                processes also refuses more steps than it holds.
        """
        rows, steps = self._rows(kwargs)
        return self._append(rows, steps)

    def sample(self, batch_size: int) -> Rows:
        """Draws transitions uniformly, with replacement, by NumPy's global generator.

        Returns: each field, [batch_size, *shape].

        Raises:
            ValueError: the buffer is empty, or batch_size is not an integer of at least 0.
            MarlcoreError: a writer overwrote every draw, or died while it overwrote the whole ring.
        """
        rows, _ = self._ring.whole(whole_number("batch_size", batch_size, 0), self._draw)
        return {name: rows[name] for name in self._fields}

    def get_all_transitions(self, shuffle: bool = False) -> Rows:
        """Returns each transition that is not being overwritten, by position or shuffled by NumPy's generator."""
        window = self._ring.window()
        positions = np.arange(window.stored)
        if shuffle:
            np.random.shuffle(positions)
        rows, ok = self._ring.gather(window.tickets(positions))
        return {name: rows[name] if ok is None else rows[name][ok] for name in self._fields}

    def _encode_sample(self, idx: int | Iterable[int]) -> Rows:
        """Returns the transitions at positions, as in cpprb: each field [n, *shape]; zeros at empty positions.

        Raises: IndexError: a position is outside the buffer.
        """
        positions = np.array(idx, np.int64, ndmin=1)
        size = self._ring.capacity
        bad = positions[(positions < -size) | (positions >= size)]
        if bad.size:
            raise IndexError(f"idx: expected positions from {-size} to {size - 1}, got {bad[0]}")
        rows = self._ring.at(positions % size, *self._fields)
        return {name: rows[name] for name in self._fields}

    def clear(self) -> None:
        """Deletes every transition, for all processes; the next transition is added at position 0.

        The rows of a concurrent `add` of another process are all deleted or all kept.
        """
        self._ring.clear()

    def get_stored_size(self) -> int:
        """Returns the number of transitions stored."""
        return self._ring.window().stored

    def get_buffer_size(self) -> int:
        """Returns the largest number of transitions."""
        return self._ring.capacity

    def get_next_index(self) -> int:
        """Returns the next position to be written."""
        return self._ring.window().head

    def on_episode_end(self) -> None:
        """Does nothing in a buffer for several processes, as in cpprb."""

    def is_Nstep(self) -> bool:  # noqa: N802
        """Returns whether `add` computes n-step returns; False in a buffer for several processes, as in cpprb."""
        return False

    def close(self) -> None:
        """Releases the memory; dropping the last reference to the buffer does the same."""
        self._ring.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(size={self._ring.capacity}, fields={list(self._fields)})"

    def _rows(self, values: Mapping[str, Any]) -> tuple[Rows, int]:
        """Returns each field of `values` as [steps, *shape], and the number of steps."""
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
        if len(steps) != 1:
            counts = {name: len(array) for name, array in rows.items()}
            raise ValueError(f"steps: expected the same number in each field, got {counts}")
        return rows, steps.pop()

    def _append(self, rows: Rows, steps: int) -> int | None:
        if steps > self._ring.capacity:
            raise ValueError(f"steps: expected at most the buffer's size {self._ring.capacity}, got {steps}")
        if not steps:
            return self.get_next_index()
        return self._ring.position(self._ring.append(rows, steps))

    def _draw(self, count: int) -> Ints:
        """Draws the tickets of rows to sample, int64 [count]; an empty array while every row is being overwritten."""
        window = self._ring.window()
        check_not_empty(window)
        return window.draw(count, np.random.randint)


class MPReplayBuffer(RingBuffer):
    """A ring of transitions that any process may add to and sample from; pass the object itself to a process.

    Args:
        size: transitions held, at least 1.
        env_dict: by field name, a dict with the field's "shape" (default 1) and "dtype" (default `default_dtype`).
        default_dtype: NumPy dtype of fields without their own; float32 by default.
        logger, ctx, backend: accepted for compatibility.

    Raises: ValueError, TypeError: an argument is out of range. SharedMemoryFull: no room for the buffer.
        multiprocessing.ProcessError: ctx is a manager that has shut down.
    """

    def __init__(
        self,
        size: int,
        env_dict: EnvDict | None = None,
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
        fields = fields_of(env_dict, default_dtype, self._own_fields)
        ring = Ring({**fields, **self._own_fields}, whole_number("size", size, 1), shared=True)
        super().__init__(ring, fields)


def check_not_empty(window: Held) -> None:
    if not window.stored:
        raise ValueError("sample: expected at least one stored transition, got none")


def fields_of(env_dict: EnvDict, default_dtype: DTypeLike | None, reserved: Iterable[str]) -> dict[str, Field]:
    """Returns the fields of cpprb's env_dict by name. Raises ValueError or TypeError if a field is wrong."""
    check_type("env_dict", env_dict, Mapping, expected="a dict of fields")
    for name in reserved:
        if name in env_dict:
            raise ValueError(f"env_dict: {name!r} is the name of an argument of add")
    default = np.dtype(np.float32 if default_dtype is None else default_dtype)
    return {name: _field(name, about, default) for name, about in env_dict.items()}


def _field(name: str, about: Mapping[str, Any], default: np.dtype[Any]) -> Field:
    check_type(f"env_dict[{name!r}]", about, Mapping, expected="a dict with shape and dtype")
    shape = about.get("shape", 1)
    dtype = about.get("dtype")
    try:
        extents = shape.tolist() if isinstance(shape, (np.ndarray, np.generic)) else shape
        field = Field(extents, default.name if dtype is None else np.dtype(dtype).name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"env_dict[{name!r}]: {error}") from None
    if not field.shape:
        raise ValueError(f"env_dict[{name!r}]: expected a shape of at least one axis, got {shape!r}")
    return field
