"""A batch of transitions: one block of bytes, carved into arrays."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from ..arrays import BFLOAT16
from ..fixed import refusal
from ..kernels.plan import COLUMN, NO_NEXT, ONE_MORE, OWN_STACKS, SEPARATE
from ..lazy import missing
from ..observations import each, leaves, nested, rows_at
from ..pytrees import pytree, register, waiting
from ..spec import ACTION, Field
from .layout import LaneView, Place

if TYPE_CHECKING:
    import torch


ALIGNMENT = 64  # bytes at which each array begins: a cache line, and what JAX takes without a copy
# The fields that kernels compute; the kernels' plan has the offset of each
COMPUTED = dict.fromkeys(("reward", "discount", "weight"), "float32")
COMPUTED |= dict.fromkeys(("terminated", "truncated", "valid", "mask"), "bool")
COMPUTED |= dict.fromkeys(("policy_version", "index"), "int64")


Copy = Callable[[dict[str, Any]], dict[str, Any]]


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


@pytree(lambda batch: (tuple(vars(batch).values()), tuple(vars(batch))), lambda names, values: _batch_of(names, values))
class Batch:
    """B transitions as NumPy arrays; the memory is reused once the batch and its arrays are released.

    Attributes:
        obs: [B, *shape], or [B, stack, *shape] oldest frame first when stack > 1; a dict for dict observations, which
            nests as the spec's does.
        action: [B, *shape]; a dict for dict actions.
        reward: float32 [B], the n-step return: the rewards of up to n steps, each discounted; [B, n] for vectors.
        next_obs: like obs, n steps later; the final observation if the episode was truncated earlier; unspecified but
            readable if it terminated.
        discount: float32 [B], gamma^k for the k steps taken, 0 after termination.
        terminated, truncated: bool [B], whether the episode ended this way within the n steps.
        valid: bool [B, stack], False for padding frames of obs.
        weight: float32 [B], importance weights; 1 for uniform sampling.
        index: int64 [B], the transition's number in its replay: ticket * lanes + lane. `ReplayBuffer.read` takes it.
        policy_version: int64 [B], the version of the weights that acted, modulo 2^32.
        extras: a dict of arrays [B, *shape], which nests as the spec's does.
        mask: in a batch of sequences bool [B, T], False for burn-in and for the places after an episode's end; else
            None. The places after the end hold zeros, but obs and next_obs are unspecified there. Every other array of
            such a batch has the axis T after B, except weight, index (of the sequence's first transition) and extras
            stored at intervals (the recurrent state before the sequence).
        source: in a batch of a Mixture int64 [B], the number of each row's replay; else None.
        continues: in a batch of single transitions from a queue, with n_step 1, bool [B], whether the batch's next row
            is the next transition of the same episode; else None.
        relabelled: with hindsight bool [B], whether a row's goal was replaced; else None.
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
    mask: NDArray[np.bool_] | None
    source: NDArray[np.int64] | None = None
    continues: NDArray[np.bool_] | None = None
    relabelled: NDArray[np.bool_] | None = None

    def __init__(self, fields: dict[str, Any], dicts: tuple[tuple[str, Copy], ...]) -> None:
        """Takes the arrays by field; `dicts` has, for each field that is a dict, the function that copies it."""
        if waiting and "jax" in sys.modules:
            register()
        attributes = self.__dict__
        attributes.update(fields)
        for name, copy in dicts:
            attributes[name] = copy(fields[name])

    if not TYPE_CHECKING:  # a type checker that saw it would allow every name

        def __setattr__(self, name: str, value: Any) -> None:
            if type(self) is Batch and name not in _NAMES:
                raise refusal(self, name, _NAMES)
            object.__setattr__(self, name, value)

    def __len__(self) -> int:
        return len(self.reward)

    def __repr__(self) -> str:
        sizes = " x ".join(map(str, self.discount.shape))
        return f"<{type(self).__name__} {sizes} of {', '.join(['obs', 'action', *self.extras])}>"

    def torch(self, device: torch.device | str = "cpu") -> TorchBatch:
        """Returns the same fields as tensors: views of this memory on the CPU, copies elsewhere."""
        return TorchBatch(self, device)


def _batch_of(names: tuple[str, ...], values: Iterable[Any]) -> Batch:
    return Batch(dict(zip(names, values, strict=True)), ())


def _deep(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: _deep(part) if isinstance(part, dict) else part for name, part in parts.items()}


_NAMES = {*Batch.__annotations__, "numbers", "raw_reward"}  # the last two are added by a run's learner


class TorchBatch:
    """The fields of a `Batch` as tensors; a run's learner adds fields, see `Trainer.update`."""

    numbers: Mapping[str, float]
    raw_reward: torch.Tensor

    def __init__(self, batch: Batch, device: torch.device | str) -> None:
        try:
            import torch
        except ModuleNotFoundError as error:
            raise missing("batch.torch()", error) from None

        stays = str(device) == "cpu"  # a call of `to` would take as long as the conversion

        def convert(value: Any) -> Any:
            if isinstance(value, dict):
                return each(convert, value)
            if value is None:
                return None
            try:
                tensor = torch.from_numpy(value)
            except TypeError:
                if value.dtype.name != BFLOAT16:  # which is not NumPy's own
                    raise
                tensor = torch.from_numpy(value.view(np.int16)).view(torch.bfloat16)
            return tensor if stays else tensor.to(device)

        self.obs: torch.Tensor | dict[str, torch.Tensor] = convert(batch.obs)
        self.action: torch.Tensor = convert(batch.action)
        self.reward: torch.Tensor = convert(batch.reward)
        self.next_obs: torch.Tensor | dict[str, torch.Tensor] = convert(batch.next_obs)
        self.discount: torch.Tensor = convert(batch.discount)
        self.terminated: torch.Tensor = convert(batch.terminated)
        self.truncated: torch.Tensor = convert(batch.truncated)
        self.valid: torch.Tensor = convert(batch.valid)
        self.weight: torch.Tensor = convert(batch.weight)
        self.index: torch.Tensor = convert(batch.index)
        self.policy_version: torch.Tensor = convert(batch.policy_version)
        self.extras: dict[str, torch.Tensor] = convert(batch.extras)
        self.mask: torch.Tensor | None = convert(batch.mask)
        self.source: torch.Tensor | None = convert(batch.source)
        self.continues: torch.Tensor | None = convert(batch.continues)
        self.relabelled: torch.Tensor | None = convert(batch.relabelled)

    def __len__(self) -> int:
        return len(self.reward)

    __repr__ = Batch.__repr__


class BatchLayout:
    """Lays out the arrays of `batch` transitions or sequences in a block, and lists the columns copied into the block.

    The bases of the columns (see kernels/plan.py) are offsets in the segment's body.
    """

    def __init__(self, lanes: LaneView, batch: int, stack: int, n_step: int, length: int | None, apart: bool) -> None:
        """`apart`: obs and next_obs share no frames, so each is contiguous."""
        spec, layout = lanes.spec, lanes.layout
        self.batch_size = batch
        self.length = length or 1
        self.nbytes = 0
        self._arrays: dict[str, _Array] = {}
        self._lead = (batch,) if length is None else (batch, length)
        self._stack = stack
        self._geometry = lanes.geometry
        self._spec, self._obs_names = spec, list(spec.obs_fields)
        extra_fields = spec.extra_fields.items()
        self._extra_names = [name for name, field in extra_fields if field.every == 1 or length is not None]
        consecutive = ONE_MORE if n_step == 1 or self.length * stack == 1 else OWN_STACKS
        self._next = NO_NEXT if spec.next_obs else SEPARATE if apart else consecutive
        extras = [place for place in layout.of_role("extra") if place.name in self._extra_names]
        fields = [place for role in ("next_obs", "action") for place in layout.of_role(role)]
        fields += [place for place in extras if place.field.every == 1]
        states = [place for place in extras if place.field.every > 1]
        columns = [self._frames(place) for place in layout.of_role("obs")]
        self.frames, self.fields, self.states = len(columns), len(fields), len(states)
        columns += [self._field(place, self._lead) for place in fields]
        columns += [self._field(place, (batch,)) for place in states]
        for name, dtype in COMPUTED.items():
            once = (batch,) if name in ("index", "weight") else self._lead
            self._add(name, once + {"valid": (stack,), "reward": spec.reward.shape}.get(name, ()), dtype)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        if self.nbytes > memory:
            expected = f"a batch within this machine's {memory:,} bytes of memory"
            raise ValueError(f"batch_size: expected {expected}, got {batch}, which takes {self.nbytes:,} bytes")
        self.columns = np.array(columns, COLUMN)

    def offset(self, name: str) -> int:
        return self._arrays[name].offset

    def carve(self, root: NDArray[np.uint8]) -> dict[str, Any]:
        """Returns a batch's fields as arrays in these bytes; see Batch."""
        arrays = self._arrays
        fields: dict[str, Any] = {name: arrays[name].of(root) for name in COMPUTED}
        if len(self._lead) == 1:
            fields["mask"] = None
        spec = self._spec
        extras = {name: arrays[f"extra.{name}"].of(root) for name in self._extra_names}
        actions = {name: arrays[f"action.{name}"].of(root) for name in spec.action_fields}
        fields["action"], fields["extras"] = nested(actions, spec.action, ACTION), nested(extras, spec.extras)
        for role in ("obs", "next_obs"):
            fields[role] = nested({name: arrays[f"{role}.{name}"].of(root) for name in self._obs_names}, spec.obs)
        return fields

    def _add(self, name: str, shape: tuple[int, ...], dtype: Any) -> _Array:
        array = self._arrays[name] = _Array(self.nbytes, shape, np.dtype(dtype))
        self.nbytes = -(-(self.nbytes + array.nbytes) // ALIGNMENT) * ALIGNMENT
        return array

    def _source(self, place: Place) -> tuple[int, int]:
        return self._geometry.column_offset(place.column) + place.offset, self._geometry.stride(place.column)

    def _frames(self, place: Place) -> tuple[int, ...]:
        """Adds a block of frames for each slot. obs is a view of it; so is next_obs, unless stored or separate."""
        stack, field, frame = self._stack, place.field, place.field.nbytes
        alone = self.length * stack  # frames of one field's stacks
        near = alone if self._next == SEPARATE else stack - 1 + self.length + (self._next == ONE_MORE)
        far = alone if self._next == OWN_STACKS else 0
        block = self._add(f"block.{place.name}", (self.batch_size, near + far, *field.shape), field.numpy)
        self._view(f"obs.{place.name}", block, 0, field, stack * frame if self._next == SEPARATE else frame)
        then, first = block, {ONE_MORE: 1, OWN_STACKS: near}.get(self._next, 0)
        if self._next == SEPARATE:
            then = self._add(f"next.{place.name}", (self.batch_size, alone, *field.shape), field.numpy)
        if self._next != NO_NEXT:
            step = frame if self._next == ONE_MORE else stack * frame
            self._view(f"next_obs.{place.name}", then, first, field, step)
        steps = [array.shape[1] * frame for array in (block, then)]
        return (*self._source(place), frame, block.offset, self._next, steps[0], then.offset + first * frame, steps[1])

    def _view(self, name: str, block: _Array, first: int, field: Field, step: int) -> None:
        """Adds a view of a block of frames: each slot's stacks begin at frame `first`, `step` bytes apart."""
        frame = field.nbytes
        shape, strides = field.shape, np.ndarray(field.shape, field.numpy, b"\0" * frame).strides
        if self._stack > 1:
            shape, strides = (self._stack, *shape), (frame, *strides)
        lead = (block.shape[1] * frame, step)[: len(self._lead)]
        offset = block.offset + first * frame
        self._arrays[name] = _Array(offset, (*self._lead, *shape), block.dtype, (*lead, *strides))

    def _field(self, place: Place, lead: tuple[int, ...]) -> tuple[int, ...]:
        array = self._add(f"{place.role}.{place.name}", (*lead, *place.field.shape), place.field.numpy)
        return (*self._source(place), place.field.nbytes, array.offset, NO_NEXT, 0, 0, 0)


class BatchMemory:
    """The memory of one batch, reused once no reference to the batch or its arrays is left."""

    def __init__(self, layout: BatchLayout) -> None:
        # Written once now: page faults during a batch's copies would cost more than the copies.
        self._owner = np.full(layout.nbytes + ALIGNMENT, 0, np.uint8)
        begin = -self._owner.ctypes.data % ALIGNMENT
        self.root = self._owner[begin : begin + layout.nbytes]
        self.address: int = self.root.ctypes.data  # of the block
        self.fields = layout.carve(self.root)
        self.relabelled = np.zeros(layout.batch_size, np.bool_)  # rows relabelled by hindsight, of any sampler
        dicts = {name: value for name, value in self.fields.items() if isinstance(value, dict)}
        self._dicts: tuple[tuple[str, Copy], ...] = tuple(
            (name, _deep if any(isinstance(part, dict) for part in value.values()) else dict)
            for name, value in dicts.items()
        )
        self._arrays = [self._owner, self.root, *_every_array(self.fields)]
        self._unused = self._references()
        _memories[id(self._owner)] = self

    def batch(self, rows: int | None = None) -> Batch:
        """Returns the batch, or only its first `rows` rows."""
        if rows is None:
            return Batch(self.fields, self._dicts)
        first = {name: value if value is None else rows_at(value, slice(rows)) for name, value in self.fields.items()}
        return Batch(first, self._dicts)

    def is_free(self) -> bool:
        return self._references() == self._unused

    def _references(self) -> int:
        # An array made from one of these refers to the owner, so that every reference to the memory counts.
        return sum(map(sys.getrefcount, self._arrays))


_memories: WeakValueDictionary[int, BatchMemory] = WeakValueDictionary()  # by the id of the array that owns each


def memory_of(batch: Batch) -> BatchMemory | None:
    """Returns the memory that holds most arrays of a sampler's batch; None for other batches."""
    return _memories.get(id(batch.index.base))


def _every_array(fields: dict[str, Any]) -> list[NDArray[Any]]:
    # A function of its own, since local names in `__init__` would count as references.
    return [array for array in leaves(fields).values() if array is not None]
