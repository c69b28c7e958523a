"""Weights in shared memory: a lane whose row is a whole model, published by one learner, copied by any actor.

A row is the model's tensors, then the extras as float64. With N slots the newest row lies in slot
(version - 1) mod N; the version is the lane's count of committed rows, so a publication is one copy and one store.
"""

from __future__ import annotations

import errno
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ._native import Event
from .errors import ClosedError, SegmentCorrupt, StaleHandle
from .flat import FlatModel, ModelLayout
from .lane import LaneClaim, LaneGeometry, claim
from .shm import Segment, SegmentHandle, invalidate_after_fork

__all__ = ["Mode", "ParameterStore", "ParameterView", "Publisher", "Subscriber"]

Mode = Literal["snapshot", "double_buffer", "triple_buffer"]
SLOTS = {"snapshot": 1, "double_buffer": 2, "triple_buffer": 3}
WAIT_SLICE_S = 0.1
SPIN_S = 50e-6  # between looks at a publisher that is in the middle of writing the only slot


class _Extras:
    """Named float64 arrays in the last bytes of a row."""

    def __init__(self, shapes: Mapping[str, Sequence[int]]) -> None:
        for name, shape in shapes.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"extras: expected names that are identifiers, got {name!r}")
            if not isinstance(shape, (tuple, list)) or not all(isinstance(n, int) and n > 0 for n in shape):
                raise ValueError(f"extras[{name!r}]: expected a shape, a tuple of positive integers, got {shape!r}")
        self.shapes = {name: tuple(shape) for name, shape in shapes.items()}
        self.nbytes = -(-8 * sum(math.prod(shape) for shape in self.shapes.values()) // 64) * 64

    def views(self, row: NDArray[np.uint8]) -> dict[str, NDArray[np.float64]]:
        """By name, the arrays in a row's last bytes."""
        values = row[len(row) - self.nbytes :].view(np.float64)
        found, start = {}, 0
        for name, shape in self.shapes.items():
            size = math.prod(shape)
            found[name] = values[start : start + size].reshape(shape)
            start += size
        return found

    def read(self, row: NDArray[np.uint8]) -> dict[str, Any]:
        """By name, copies: floats for the shape (), else arrays."""
        return {name: float(a) if a.shape == () else a.copy() for name, a in self.views(row).items()}


class ParameterStore:
    """One model's weights in shared memory.

    Make it with `create`, pass it (or its `handle`) to other processes; passing a store attaches to the same memory.

    Attributes:
        mode: "snapshot" (1 slot), "double_buffer" (2) or "triple_buffer" (3). With fewer slots a reader is lapped,
            and copies again, more often; it never gets a mixture.
    """

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        try:
            self.mode: Mode = segment.description["mode"]
            self._layout = ModelLayout.from_list(segment.description["tensors"])
            self._extras = _Extras(segment.description["extras"])
            self.row_bytes = self._layout.nbytes + self._extras.nbytes
            self._geometry = LaneGeometry(1, SLOTS[self.mode], (self.row_bytes,))
        except (KeyError, TypeError, AttributeError) as error:
            raise SegmentCorrupt(f"{segment.path}: expected a parameter store, got another kind of segment") from error
        if self._geometry.nbytes > len(segment.body):
            raise SegmentCorrupt(f"{segment.path}: expected {self._geometry.nbytes} bytes of slots")
        self._lanes = self._geometry.bind(segment.body)

    @classmethod
    def create(
        cls,
        model: nn.Module,
        mode: Mode = "double_buffer",
        extras: Mapping[str, Sequence[int]] | None = None,
        *,
        name: str = "weights",
    ) -> ParameterStore:
        """A new store, nothing published yet.

        Args:
            model: its parameters and buffers (persistent or not) are what a row holds; tied tensors once.
            mode: "snapshot", "double_buffer" or "triple_buffer".
            extras: shapes of float64 arrays that travel with the weights, such as {"epsilon": (), "obs_mean": (18,)}.
            name: part of the segment's name in /dev/shm: letters, digits, "_" and ".".

        Raises: ValueError: a mode, an extra or the name is not right. SharedMemoryFull: there is no room for it.
        """
        if mode not in SLOTS:
            raise ValueError(f"mode: expected one of {', '.join(SLOTS)}, got {mode!r}")
        layout, shapes = ModelLayout.of(model), _Extras(extras or {})
        row_bytes = layout.nbytes + shapes.nbytes
        if not row_bytes:
            raise ValueError("model: expected at least one parameter, buffer or extra, got none")
        described = {"kind": "params", "mode": mode, "tensors": layout.to_list(), "extras": shapes.shapes}
        geometry = LaneGeometry(1, SLOTS[mode], (row_bytes,))
        return cls(Segment.create(name, described, geometry.nbytes))

    @classmethod
    def attach(cls, handle: SegmentHandle) -> ParameterStore:
        """The store that a handle names. Raises SegmentNotFound, StaleHandle or SegmentCorrupt."""
        return cls(Segment.attach(handle))

    @property
    def handle(self) -> SegmentHandle:
        """Picklable; `attach` takes it."""
        return self._segment.handle

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory."""
        return self._segment.nbytes

    @property
    def version(self) -> int:
        """Publications so far."""
        self._segment.check_open()
        return self._lanes.committed(0)

    def slot_tensor(self, slot: int) -> torch.Tensor:
        """The bytes of a slot in shared memory, uint8 [row_bytes]; its publisher may be writing them.

        Raises: ValueError: there is no such slot.
        """
        self._segment.check_open()
        if not 0 <= slot < SLOTS[self.mode]:
            raise ValueError(f"slot: expected 0 to {SLOTS[self.mode] - 1}, got {slot!r}")
        start = self._geometry.column_offset(0) + slot * self._geometry.stride(0)
        return torch.from_numpy(self._segment.body[start : start + self.row_bytes])

    def publisher(self, model: nn.Module) -> Publisher:
        """The writing end, for this process alone; moves the model's tensors into one flat tensor.

        Raises: LaneBusy: its publisher lives. LayoutMismatch: the model has other tensors than the store.
        """
        self._segment.check_open()
        self._layout.check(ModelLayout.of(model))
        return Publisher(self, model, claim(self._segment, self._lanes, 0))

    def subscriber(self, model: nn.Module) -> Subscriber:
        """A reading end, which keeps `model` up to date; moves its tensors into one flat tensor.

        Raises: LayoutMismatch: the model has other tensors than the store.
        """
        self._segment.check_open()
        return Subscriber(self, model)

    def close(self) -> None:
        """Lets go of the memory; a store disappears when its creator closes it."""
        self._segment.close()

    def unlink(self) -> None:
        """Removes the name; processes that are attached keep the memory."""
        self._segment.unlink()

    def __enter__(self) -> ParameterStore:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Callable[..., ParameterStore], tuple[SegmentHandle]]:
        return ParameterStore.attach, (self.handle,)


class Publisher:
    """Publishes one model; made by `ParameterStore.publisher`.

    Whatever is done to the model between publications (`to`, `load_state_dict`, a replaced parameter), the values
    that it computes with are published, or LayoutMismatch is raised: never stale ones.
    """

    def __init__(self, store: ParameterStore, model: nn.Module, claimed: LaneClaim) -> None:
        self._store = store
        self._claim = claimed
        self._row = np.zeros(store.row_bytes, np.uint8)
        self._host = torch.from_numpy(self._row)[: store._layout.nbytes]
        self._model = FlatModel(model, store._layout, self._host)
        self._extras = store._extras.views(self._row)
        self._missing = set(self._extras)
        self._append = store._lanes.appender(0, self._row)
        self._version = store._lanes.committed(0)
        self._refusal: Exception | None = None
        invalidate_after_fork(self)

    def publish(self, **extras: Any) -> int:
        """Makes the model's values and the extras the newest version.

        Args:
            extras: a number or array for each declared extra; one that is left out keeps its last value.

        Returns: the version, 1 for the first.

        Raises:
            ValueError: an extra is unknown, of another shape, or was never given.
            LayoutMismatch: the model no longer has the store's tensors; nothing was published.
        """
        if self._refusal is not None:
            raise self._refusal
        if extras or self._missing:
            self._stage_extras(extras)
        self._model.refresh()
        if self._model.flat is not self._host:
            self._host.copy_(self._model.flat)
        self._append()
        self._version += 1
        return self._version

    def _stage_extras(self, extras: dict[str, Any]) -> None:
        if not extras.keys() <= self._extras.keys() or not self._missing <= extras.keys():
            raise ValueError(f"extras: expected {sorted(self._extras)}, got {sorted(extras)}")
        staged = {}
        for name, value in extras.items():
            array = np.asarray(value, np.float64)
            if array.shape != self._extras[name].shape:
                raise ValueError(f"{name}: expected shape {self._extras[name].shape}, got {array.shape}")
            staged[name] = array
        for name, array in staged.items():
            self._extras[name][...] = array
        self._missing.clear()

    def close(self) -> None:
        """Gives the store's writing end back; the model keeps its values."""
        self._refusal = self._refusal or ClosedError("the publisher was closed")
        self._claim.release()

    def forked(self) -> None:
        """In a forked child: the writing end is the parent's."""
        self._refusal = StaleHandle("the publisher was made before a fork; the store is the parent's to write")

    def __enter__(self) -> Publisher:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


class Subscriber:
    """Keeps a local model up to date; made by `ParameterStore.subscriber`.

    Attributes:
        version: of the local model's weights, 0 before the first pull.
        extras: that were published with them; floats for the shape (), else float64 arrays.
    """

    def __init__(self, store: ParameterStore, model: nn.Module) -> None:
        self._store = store
        self._model = FlatModel(model, store._layout)
        self._row = np.zeros(store.row_bytes, np.uint8)
        self._host = torch.from_numpy(self._row)[: store._layout.nbytes]
        self._read = store._lanes.newest_reader(0, self._row)
        self._event = Event(store._segment.body)
        self.version = 0
        self.extras: dict[str, Any] = {}

    def pull(self, timeout: float = 1.0) -> bool:
        """Copies newer weights into the local model, whole or not at all.

        Args:
            timeout: seconds to try when the publisher overwrites each copy.

        Returns: whether there were newer weights.

        Raises: TimeoutError: no copy stayed whole for so long; more slots, or fewer publications, help.
        """
        if self._store.version <= self.version:
            return False
        deadline = 0.0
        while (version := self._read()) < 0:
            if version != -errno.ESTALE:
                raise SegmentCorrupt(f"{self._store._segment.path}: the weights' row cannot be read")
            deadline = deadline or time.monotonic() + timeout
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self._store._segment.path}: the publisher overwrote every copy for {timeout} s in mode "
                    f"{self._store.mode!r}; use more slots or publish less often"
                )
            time.sleep(SPIN_S)
        self._model.refresh()
        self._model.flat.copy_(self._host)
        self.extras = self._store._extras.read(self._row)
        self.version = version
        return True

    def wait(self, newer_than: int, timeout: float | None = None) -> bool:
        """Sleeps until a version newer than `newer_than` is published; False when the time, in seconds, is up."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            seen = self._event.prepare()
            if self._store.version > newer_than:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self._event.wait(seen, min(left, WAIT_SLICE_S))

    @contextmanager
    def in_place(self) -> Iterator[ParameterView]:
        """The newest slot itself, without a copy; ask `valid()` after using it.

        Raises: ValueError: nothing was published yet.
        """
        version = self._store.version
        if version == 0:
            raise ValueError("in_place: expected a published version, got none yet")
        yield ParameterView(self._store, version)


class ParameterView:
    """Weights where they are published; what is computed with them counts only if `valid()` afterwards.

    Attributes:
        version: of the weights.
        tensors: by each name in the model, views of shared memory, as torch.func.functional_call takes them.
        extras: by name, copies.
    """

    def __init__(self, store: ParameterStore, version: int) -> None:
        slot = store.slot_tensor((version - 1) % SLOTS[store.mode])
        self.version = version
        self.tensors = {name: place.of(slot) for place in store._layout.places for name in place.names}
        self.extras = store._extras.read(slot.numpy())
        self._lanes = store._lanes
        self._which = np.zeros(1, np.int64)
        self._ticket = np.array([version - 1], np.int64)
        self._whole = np.zeros(1, np.uint8)
        self._validate = self._lanes.validator(self._which, self._ticket, self._whole)

    def valid(self) -> bool:
        """Whether the slot still holds this version, whole: what was read from it until now is right."""
        return self._validate(1) == 0
