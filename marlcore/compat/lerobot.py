"""LeRobot's replay buffer in marlcore's shared memory: an actor's process adds, a learner's process samples.

    from marlcore.compat.lerobot import ReplayBuffer

replaces the class of `lerobot.rl.buffer`, from which it derives: iterators, datasets and mixtures are LeRobot's own.
Pass the buffer to other processes, forked or spawned, as it is.
"""

import functools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from lerobot.rl import buffer as host
from lerobot.utils.constants import OBS_IMAGE
from numpy.typing import NDArray

from ..checks import brief, names_error
from ..memory import invalidate_after_fork
from ..spec import Field, rows_of
from .compressed_ring import CompressedRing
from .ring import Held, Ring

Tensors = Mapping[str, torch.Tensor]

_FLAG, _NUMBER = Field((), "bool"), Field()
_MOST, _LEVELS, _LARGEST = 255, np.dtype(np.uint8), 3.4e38  # the last is in float32's range
_OWN = {"reward": _NUMBER, "done": _FLAG, "truncated": _FLAG}  # fields of each row


class ReplayBuffer(host.ReplayBuffer):
    """LeRobot's ReplayBuffer as a ring of rows; docs/drop-ins.md lists the differences.

    Args:
        capacity, device, state_keys, image_augmentation_function, use_drq: as in LeRobot.
        storage_device: "cpu", where shared memory lies.
        optimize_memory: stores a next state only where it differs from the next row's state; for one process alone.

    Raises: ValueError: an argument is out of range.
    """

    _uint8 = False  # whether images with values from 0 to 1 are stored in 256 levels

    def __init__(
        self,
        capacity: int,
        device: str = "cuda:0",
        state_keys: Sequence[str] | None = None,
        image_augmentation_function: Callable[..., Any] | None = None,
        use_drq: bool = True,
        storage_device: str = "cpu",
        optimize_memory: bool = False,
    ) -> None:
        # Without LeRobot's constructor, which sets the counts that the ring holds
        if capacity <= 0:
            raise ValueError(f"Capacity must be greater than 0. Got {brief(capacity)}")
        if torch.device(storage_device).type != "cpu":
            raise ValueError(f"storage_device: expected 'cpu', where shared memory lies, got {brief(storage_device)}")
        self.capacity = capacity
        self.device = device
        self.storage_device = storage_device
        self.state_keys = [] if state_keys is None else state_keys
        self.optimize_memory = optimize_memory
        self.use_drq = use_drq
        self._augmentation = image_augmentation_function
        self._ring: Any = None  # a Ring, once there is memory
        self.__setstate__({})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())
        invalidate_after_fork(self)
        default = torch.compile(functools.partial(host.random_shift, pad=4))  # LeRobot's, which cannot be pickled
        self.image_augmentation_function = self._augmentation or default

    def forked(self) -> None:
        """In a forked child: a thread of the parent may have held the lock."""
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for another process, which uses the same rows."""
        if self._ring is None:
            raise TypeError("a buffer without memory cannot be passed on: call `allocate`, or add a row before")
        return {name: part for name, part in vars(self).items() if name not in ("_lock", "image_augmentation_function")}

    def allocate(self, state: Tensors, action: torch.Tensor, complementary_info: Tensors | None = None) -> None:
        """Allocates memory for rows like this one, but adds no row; without this call, the first `add` allocates it.

        Raises: SharedMemoryFull: no room for the buffer.
        """
        states = {f"state.{key}": self._field(key, value) for key, value in state.items()}
        fields = {**states, **{f"next_{name}": field for name, field in states.items()}}
        fields |= {"action": _field_of(action, "float32"), **_OWN}
        fields |= {f"info.{key}": _field_of(value, "float32") for key, value in (complementary_info or {}).items()}
        self.has_complementary_info = complementary_info is not None
        self.complementary_info_keys = [*(complementary_info or ())]
        self._states = dict.fromkeys(state)
        if self.optimize_memory:
            self._ring = CompressedRing(fields, self.capacity, (), [*states], None)
        else:
            self._ring = Ring(fields, self.capacity, shared=True)
        self._fields = fields

    _initialize_storage = allocate  # LeRobot's name, by which its datasets call it

    def close(self) -> None:
        """Releases the memory, which disappears when the buffer's creator closes it."""
        if self._ring is not None:
            self._ring.close()

    @property
    def size(self) -> int:
        """The number of rows held."""
        return 0 if self._ring is None else int(self._ring.window().stored)

    @property
    def position(self) -> int:
        """The position that is written next."""
        return 0 if self._ring is None else int(self._ring.window().head)

    def add(
        self,
        state: Tensors,
        action: torch.Tensor,
        reward: float,
        next_state: Tensors | None,
        done: bool,
        truncated: bool,
        complementary_info: Mapping[str, Any] | None = None,
    ) -> None:
        """Adds a row from any process; with `optimize_memory`, only from the process that made the buffer.

        Args:
            state, action, reward, next_state, done, truncated, complementary_info: as in LeRobot, with a leading axis
                of one or without. Numbers that complementary_info lacks are zero. With `optimize_memory`, next_state
                may be None where done, and is then the state.

        Raises: ValueError, TypeError: a value is missing or of another shape or kind; nothing was added.
        """
        with self._lock:
            if self._ring is None:
                self.allocate(state, action, complementary_info)
            following = state if next_state is None and self.optimize_memory and done else next_state
            row: dict[str, Any] = {"action": action, "reward": reward, "done": done, "truncated": truncated}
            for label, part in (("state", state), ("next_state", following)):
                if part is None or not part.keys() >= self._states.keys():
                    raise names_error(label, self._states, part or ())
                row |= {f"{label}.{key}": part[key] for key in self._states}
            info = complementary_info or {}
            for key in self.complementary_info_keys:
                name = f"info.{key}"
                row[name] = info[key] if key in info else self._fields[name].zeros(1)
            self._ring.append({name: self._row(name, value) for name, value in row.items()}, 1)

    def sample(self, batch_size: int) -> host.BatchTransition:
        """Draws rows as LeRobot does, by torch's generator; returns tensors on the buffer's device.

        Raises: RuntimeError: the buffer is empty.
        """
        with self._lock:
            window = Held(0, 0, 0, 1) if self._ring is None else self._ring.window()
            if not window.stored:
                raise RuntimeError("Cannot sample from an empty buffer. Add transitions first.")
            windows = chain([window], iter(self._ring.window, None))  # one look is enough for a try

            def draw(count: int) -> Any:
                return next(windows).draw(count, lambda low, high, n: torch.randint(low, high, (n,)).numpy())

            rows, _ = self._ring.whole(min(batch_size, window.stored), draw)
        rows |= {name: rows[name].astype(np.float32) for name in ("done", "truncated")}
        tensors = {name: self._tensor(name, array, self.device) for name, array in rows.items()}
        batch = {name: {key: tensors[f"{name}.{key}"] for key in self._states} for name in ("state", "next_state")}
        if self.use_drq:
            self._augment([*batch.values()])
        info = {key: tensors[f"info.{key}"] for key in self.complementary_info_keys}
        return host.BatchTransition(
            **batch,
            action=tensors["action"],
            reward=tensors["reward"],
            done=tensors["done"],
            truncated=tensors["truncated"],
            complementary_info=info if self.has_complementary_info else None,
        )

    # What LeRobot keeps as tensors
    states = property(lambda self: {key: Column(self, f"state.{key}") for key in self._states})
    next_states = property(lambda self: {key: Column(self, f"next_state.{key}") for key in self._states})
    complementary_info = property(
        lambda self: {key: Column(self, f"info.{key}") for key in self.complementary_info_keys}
    )
    actions = property(lambda self: Column(self, "action"))
    rewards = property(lambda self: Column(self, "reward"))
    dones = property(lambda self: Column(self, "done"))
    truncateds = property(lambda self: Column(self, "truncated"))

    def _augment(self, states: list[dict[str, torch.Tensor]]) -> None:
        """Replaces the images of all states by augmented ones, all in one call."""
        keys = [key for key in self._states if key.startswith(OBS_IMAGE)]
        if keys:
            images = torch.cat([state[key] for key in keys for state in states])
            parts = iter(self.image_augmentation_function(images).chunk(len(keys) * len(states)))
            for key in keys:
                for state in states:
                    state[key] = next(parts)

    def _field(self, key: str, value: torch.Tensor) -> Field:
        levels = (self._uint8 and key.startswith(OBS_IMAGE)) or _array(value).dtype == np.uint8
        return _field_of(value, "uint8" if levels else "float32")

    def _row(self, name: str, value: Any) -> Any:
        """Returns what the ring takes for a value: an array [1, *shape], or the number itself."""
        field = self._fields[name]
        dtype, shape = field.dtype, (1, *field.shape)
        if value.__class__ is bool and name in ("done", "truncated"):
            return value
        if name == "reward" and isinstance(value, float) and -_LARGEST < value < _LARGEST:
            return value
        array = _array(value)
        if array.shape == shape and array.dtype == field.numpy:
            return array
        if field == _FLAG:
            array = array.astype(np.bool_)
        if self._uint8 and dtype == "uint8" and array.dtype.kind == "f":
            levels = np.rint(array * _MOST)
            with np.errstate(invalid="ignore"):
                given, array = array, levels.astype(np.uint8)
            if (levels != array).any():
                raise ValueError(f"{name}: expected values from 0 to 1, got {given.min():.3g} to {given.max():.3g}")
        if array.shape not in (field.shape, shape) and not array.size == 1 == math.prod(field.shape):
            raise ValueError(f"{name}: expected {field.describe()}, got shape {array.shape}")
        return rows_of(name, field, array.reshape(shape), 1)

    def _tensor(self, name: str, array: NDArray[Any], device: str = "cpu") -> torch.Tensor:
        tensor = torch.from_numpy(array) if device == "cpu" else torch.from_numpy(array).to(device)
        if array.dtype != _LEVELS:
            return tensor
        key = name.partition(".")[2]
        return tensor.float().div_(_MOST) if self._uint8 and key.startswith(OBS_IMAGE) else tensor.float()


class Uint8ReplayBuffer(ReplayBuffer):
    """A ReplayBuffer that stores images, which have values from 0 to 1, in 256 levels: a quarter of the memory.

    Images that were made from uint8 by a division by 255 come back bit for bit.
    """

    _uint8 = True


class Column:
    """A field of all rows by position, indexed like a NumPy array; returns copies, with zeros where no row is."""

    def __init__(self, buffer: ReplayBuffer, name: str) -> None:
        self.shape = torch.Size((buffer.capacity, *buffer._fields[name].shape))
        self._buffer, self._name = buffer, name

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> torch.Tensor:
        first, *rest = index if isinstance(index, tuple) and index else (index,)
        positions, name = np.arange(len(self))[first], self._name
        with self._buffer._lock:  # of a thread that prefetches
            rows = self._buffer._ring.at(np.reshape(positions, -1), name)[name]
        if isinstance(first, slice):
            first = slice(None)
        elif first is not None and first is not ...:  # places, of which these are the rows
            first = np.arange(np.size(positions)).reshape(np.shape(positions))
        tensor: torch.Tensor = self._buffer._tensor(name, np.asarray(rows[(first, *rest)], order="C"))
        return tensor


def _array(value: Any) -> NDArray[Any]:
    return value.numpy(force=True) if isinstance(value, torch.Tensor) else np.asarray(value)


def _field_of(value: Any, dtype: str) -> Field:
    shape = _array(value).shape
    return Field(shape[1:] if shape[:1] == (1,) else shape, dtype)
