"""A batch of transitions: one block of bytes, carved into arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .lane import LaneGeometry
from .record import Place, RecordLayout
from .spec import TransitionSpec

if TYPE_CHECKING:
    import torch

__all__ = ["Batch", "BatchLayout", "TorchBatch"]


@dataclass(frozen=True)
class _Array:
    """Where one field of a batch lies in the batch's bytes."""

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def of(self, root: NDArray[np.uint8]) -> NDArray[Any]:
        return np.ndarray(self.shape, self.dtype, root, self.offset, self.strides)


class _Plan:
    """The arrays of a batch, one behind the other in one block of bytes."""

    def __init__(self) -> None:
        self.arrays: dict[str, _Array] = {}
        self.nbytes = 0

    def add(self, name: str, shape: tuple[int, ...], dtype: Any) -> _Array:
        array = _Array(self.nbytes, shape, np.dtype(dtype))
        self.arrays[name] = array
        self.nbytes = -(-(self.nbytes + array.nbytes) // 64) * 64
        return array


class Batch:
    """B transitions as NumPy arrays; the memory is used again once the batch and its arrays are let go.

    Attributes:
        obs: [B, *shape], or [B, stack, *shape] oldest frame first when stack > 1; a dict for dict observations.
        action: [B, *shape].
        reward: float32 [B], the n-step return: the rewards of up to n steps, each discounted.
        next_obs: like obs, n steps later; where the episode was truncated earlier, its final observation;
            unspecified but readable where it terminated.
        discount: float32 [B], gamma^k for the k steps taken, 0 after termination.
        terminated, truncated: bool [B], whether the episode ended so within the n steps.
        valid: bool [B, stack], False for padding frames of obs.
        weight: float32 [B], importance weights; 1 for uniform sampling.
        index: int64 [B], names the transition in its replay: ticket * lanes + lane.
        policy_version: int64 [B], the version of the weights that acted, modulo 2^32.
        extras: dict of [B, *shape].
    """

    obs: Any
    action: NDArray[Any]
    reward: NDArray[np.float32]
    next_obs: Any
    discount: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    weight: NDArray[np.float32]
    index: NDArray[np.int64]
    policy_version: NDArray[np.int64]
    extras: dict[str, NDArray[Any]]

    def __init__(self, fields: dict[str, Any]) -> None:
        for name, value in fields.items():
            self.__dict__[name] = dict(value) if value.__class__ is dict else value

    def __len__(self) -> int:
        return len(self.reward)

    def torch(self, device: torch.device | str = "cpu") -> TorchBatch:
        """The same fields as tensors: on the CPU views of this memory, elsewhere copies."""
        return TorchBatch(self, device)


class TorchBatch:
    """A Batch's fields as tensors; see there."""

    def __init__(self, batch: Batch, device: torch.device | str) -> None:
        import torch

        def convert(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: convert(one) for name, one in value.items()}
            return torch.from_numpy(value).to(device)

        self.obs = convert(batch.obs)
        self.action: torch.Tensor = convert(batch.action)
        self.reward: torch.Tensor = convert(batch.reward)
        self.next_obs = convert(batch.next_obs)
        self.discount: torch.Tensor = convert(batch.discount)
        self.terminated: torch.Tensor = convert(batch.terminated)
        self.truncated: torch.Tensor = convert(batch.truncated)
        self.valid: torch.Tensor = convert(batch.valid)
        self.weight: torch.Tensor = convert(batch.weight)
        self.index: torch.Tensor = convert(batch.index)
        self.policy_version: torch.Tensor = convert(batch.policy_version)
        self.extras: dict[str, torch.Tensor] = convert(batch.extras)


class BatchLayout:
    """Where a batch's arrays lie, and the tables that tell the kernels what to copy there."""

    def __init__(
        self,
        spec: TransitionSpec,
        layout: RecordLayout,
        geometry: LaneGeometry,
        batch: int,
        stack: int,
        n: int,
    ) -> None:
        self.batch_size = batch
        self.obs_names = list(spec.obs_fields)
        self.extra_names = list(spec.extras)
        self.plan = _Plan()
        self._geometry = geometry
        self.shift = 0 if spec.next_obs else 1 if n == 1 else stack
        frames = [self._frames(place, batch, stack) for place in layout.of_role("obs")]
        fields = [
            self._field(place, batch) for role in ("next_obs", "action", "extra") for place in layout.of_role(role)
        ]
        self.frames = np.array(frames, np.int64).reshape(-1, 5)
        self.fields = np.array(fields, np.int64).reshape(-1, 5)
        self._rows("numbers", ("reward", "discount", "weight"), np.dtype(np.float32))
        self._rows("ends", ("terminated", "truncated"), np.dtype(np.bool_))
        self._rows("tags", ("index", "policy_version"), np.dtype(np.int64))
        self.plan.add("valid", (batch, stack), np.bool_)

    def carve(self, root: NDArray[np.uint8]) -> dict[str, Any]:
        """A batch's fields as arrays of these bytes; see Batch."""
        arrays = self.plan.arrays
        names = ("reward", "discount", "terminated", "truncated", "valid", "weight", "index", "policy_version")
        found: dict[str, Any] = {name: arrays[name].of(root) for name in names}
        found["action"] = arrays["action."].of(root)
        found["extras"] = {name: arrays[f"extra.{name}"].of(root) for name in self.extra_names}
        for role in ("obs", "next_obs"):
            by_name = {name: arrays[f"{role}.{name}"].of(root) for name in self.obs_names}
            found[role] = by_name[""] if self.obs_names == [""] else by_name
        return found

    @staticmethod
    def flatten(fields: dict[str, Any]) -> list[NDArray[Any]]:
        """Every array of `fields`."""
        return [a for value in fields.values() for a in (value.values() if isinstance(value, dict) else [value])]

    def _rows(self, block: str, names: tuple[str, ...], dtype: np.dtype[Any]) -> None:
        """One array [len(names), batch] that the kernels fill, and each of its rows by name."""
        whole = self.plan.add(block, (len(names), self.batch_size), dtype)
        for i, name in enumerate(names):
            offset = whole.offset + i * self.batch_size * dtype.itemsize
            self.plan.arrays[name] = _Array(offset, (self.batch_size,), dtype)

    def _source(self, place: Place) -> tuple[int, int]:
        return self._geometry.column_offset(place.column) + place.offset, self._geometry.stride(place.column)

    def _frames(self, place: Place, batch: int, stack: int) -> tuple[int, ...]:
        """One block of stack + shift frames a row; obs and next_obs are views of it."""
        block = self.plan.add(f"block.{place.name}", (batch, stack + self.shift, *place.field.shape), place.field.dtype)
        frame = place.field.nbytes
        inner = _contiguous_strides(place.field.shape, block.dtype.itemsize)
        row = (stack + self.shift) * frame
        for role, first in (("obs", 0), ("next_obs", self.shift)):
            if role == "next_obs" and not self.shift:
                continue
            shape = (batch, *place.field.shape) if stack == 1 else (batch, stack, *place.field.shape)
            strides = (row, *inner) if stack == 1 else (row, frame, *inner)
            self.plan.arrays[f"{role}.{place.name}"] = _Array(block.offset + first * frame, shape, block.dtype, strides)
        return (*self._source(place), frame, block.offset, self.shift)

    def _field(self, place: Place, batch: int) -> tuple[int, ...]:
        array = self.plan.add(f"{place.role}.{place.name}", (batch, *place.field.shape), place.field.dtype)
        return (*self._source(place), place.field.nbytes, array.offset, 0)


def _contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for extent in reversed(shape):
        strides.append(itemsize)
        itemsize *= extent
    return tuple(reversed(strides))
