"""A model as one row of bytes: the layout of its tensors, and a model whose tensors are views of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise, zip_longest
from math import prod
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import as_field, check_whole
from ..errors import LayoutMismatch
from ..spec import MAX_BYTES, Field

__all__ = [
    "FlatModel",
    "RowLayout",
    "TensorGroup",
    "TensorSpec",
    "copied_extras",
    "extra_field",
    "fitted_extra",
    "unique_tensors",
]

_ALIGNMENT = 64  # bytes: a cache line, which satisfies every dtype

_same_view = torch.Tensor.is_set_to
_dtype_of = attrgetter("dtype")
_END = object()  # after the last member, so that an added or removed member is noticed


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model: its name (the first of a tied tensor's names), shape and dtype."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.name} {_dtype_name(self.dtype)} {self.shape}"


@dataclass
class TensorGroup:
    """A tensor of a model with all its names; tied weights form one group."""

    spec: TensorSpec
    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class RowLayout:
    """The places of a model's tensors and the extras in a row; each begins at a multiple of 64 bytes.

    Attributes:
        tensors: in the order of the model.
        extras: further arrays by name, after the tensors.
        offsets: bytes from the row's start to each tensor.
        extra_offsets: bytes from the row's start to each extra.
        tensor_bytes: offset of the extras. nbytes: size of the row.
    """

    tensors: tuple[TensorSpec, ...]
    extras: Mapping[str, Field]
    offsets: tuple[int, ...] = field(init=False)
    extra_offsets: Mapping[str, int] = field(init=False)
    tensor_bytes: int = field(init=False)
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        offsets, tensor_bytes = _place(0, [spec.nbytes for spec in self.tensors])
        extra_offsets, nbytes = _place(tensor_bytes, [one.nbytes for one in self.extras.values()])
        object.__setattr__(self, "offsets", offsets)
        object.__setattr__(self, "extra_offsets", dict(zip(self.extras, extra_offsets, strict=True)))
        object.__setattr__(self, "tensor_bytes", tensor_bytes)
        object.__setattr__(self, "nbytes", max(nbytes, _ALIGNMENT))

    def to_dict(self) -> dict[str, Any]:
        """A form ready for JSON."""
        return {
            "tensors": [[spec.name, list(spec.shape), _dtype_name(spec.dtype)] for spec in self.tensors],
            "extras": [[name, list(one.shape), one.dtype] for name, one in self.extras.items()],
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> RowLayout:
        """The layout from which `to_dict` made `plain`."""
        return cls(
            tuple(TensorSpec(name, _shape(name, shape), _dtype(dtype)) for name, shape, dtype in plain["tensors"]),
            {name: Field(tuple(shape), dtype) for name, shape, dtype in plain["extras"]},
        )

    def check(self, found: Sequence[TensorSpec]) -> None:
        """Raises LayoutMismatch: a tensor differs from this layout; the message names the first such tensor."""
        for index, (expected, got) in enumerate(zip_longest(self.tensors, found)):
            if expected != got:
                nothing = "no further tensor"
                raise LayoutMismatch(f"model tensor {index}: expected {expected or nothing}, got {got or nothing}")

    def views(self, row: torch.Tensor) -> list[torch.Tensor]:
        """The tensors of a row, uint8 [nbytes] and aligned to 64 bytes."""
        return [
            row[at : at + spec.nbytes].view(spec.dtype).view(spec.shape)
            for at, spec in zip(self.offsets, self.tensors, strict=True)
        ]

    def extra_views(self, row: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """The extras of a row, uint8 [nbytes]."""
        return {
            name: row[at : at + one.nbytes].view(one.dtype).reshape(one.shape)
            for (name, one), at in zip(self.extras.items(), self.extra_offsets.values(), strict=True)
        }


class FlatModel:
    """A model whose parameters and buffers are views of one row on the model's device.

    Parameter objects stay the same, so optimizers stay valid; tied tensors stay tied, frozen ones frozen. Tensors
    become contiguous. The row holds non-persistent buffers too.

    Attributes:
        row: uint8 [layout.nbytes] on the model's device.
        groups: the model's tensors, in the layout's order.

    Raises:
        LayoutMismatch: the model's tensors differ from the layout.
        ValueError: see `unique_tensors`; or the tensors are on several devices.
    """

    def __init__(self, model: torch.nn.Module, layout: RowLayout) -> None:
        self._model = model
        self.layout = layout
        self.bind()

    def bind(self) -> None:
        """Moves all of the model's tensors, with their current values, into a new row; after an error, none moved."""
        groups = unique_tensors(self._model)
        self.layout.check([group.spec for group in groups])
        devices = {group.tensors[0].device for group in groups}
        if len(devices) > 1:
            raise ValueError(f"model: expected all tensors on one device, got {sorted(map(str, devices))}")
        # A row made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            row = torch.zeros(self.layout.nbytes, dtype=torch.uint8, device=next(iter(devices), None))
            views = self.layout.views(row)
            for group, view in zip(groups, views, strict=True):
                view.copy_(group.tensors[0])
            for group, view in zip(groups, views, strict=True):
                for tensor in group.tensors:
                    tensor.data = view
        self.row = row
        self.groups = groups
        self._remember(views)

    def _remember(self, views: list[torch.Tensor]) -> None:
        """Records the state that `moved` compares with: containers, their members, and each tensor's memory."""
        modules = list(self._model.modules())
        containers = [c for m in modules for c in (m._parameters, m._buffers, m._modules)]
        self._empty = [c for c in containers if not c]
        self._contents = [*(c.values() for c in containers if c), (_END,)]
        self._members = list(chain.from_iterable(self._contents))
        pairs = [(tensor, view) for group, view in zip(self.groups, views, strict=True) for tensor in group.tensors]
        self._tensors = [tensor for tensor, _ in pairs]
        self._views = [view for _, view in pairs]
        self._dtypes = [view.dtype for view in self._views]
        self._address = self.row.data_ptr()

    def moved(self) -> bool:
        """Whether the model has tensors other than the row's views; takes about 1 us per tensor.

        Causes: Module.to, load_state_dict(assign=True), share_memory, assigning parameters, buffers or submodules.
        """
        return (
            any(self._empty)
            or not all(map(is_, chain.from_iterable(self._contents), self._members))
            or not all(map(_same_view, self._tensors, self._views))  # storage, offset, shape and strides
            or not all(map(is_, map(_dtype_of, self._tensors), self._dtypes))
            or self.row.data_ptr() != self._address  # share_memory moves a storage in place
        )

    def host_row(self) -> torch.Tensor:
        """A new zeroed row in host memory, pinned if that speeds up copies between it and the model."""
        pin = self.row.device.type == "cuda"
        with torch.inference_mode(False):
            return torch.zeros(self.layout.nbytes, dtype=torch.uint8, pin_memory=pin)


def unique_tensors(model: torch.nn.Module) -> list[TensorGroup]:
    """A model's parameters and buffers in module order; tensors of the same memory appear once.

    Raises:
        ValueError: a tensor is not strided, has no memory yet, or shares only part of its memory with another.
    """
    groups: dict[tuple[Any, ...], TensorGroup] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for key, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is None:
                continue
            name = f"{prefix}.{key}" if prefix else key
            spec = _spec(name, tensor)
            group = groups.setdefault(_memory(tensor), TensorGroup(spec))
            group.names.append(name)
            if not any(tensor is other for other in group.tensors):
                group.tensors.append(tensor)
    _check_apart(list(groups.values()))
    return list(groups.values())


def extra_field(name: str, extra: tuple[int, ...] | Field) -> Field:
    """The Field of an extra, declared as a Field or, for float64, by its shape."""
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"extras: expected names that are identifiers, got {name!r}")
    return extra if isinstance(extra, Field) else Field(extra, "float64")


def fitted_extra(name: str, value: Any, expected: Field) -> NDArray[Any]:
    """The value as an array of the extra's shape and dtype. Raises: as `as_field`."""
    if type(value) is float and not expected.shape and expected.dtype == "float64":
        return np.array(value)
    return as_field(f"extras {name}", expected, value)


def copied_extras(extras: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    return {name: array.copy() if array.ndim else array.item() for name, array in extras.items()}


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        raise ValueError(f"model {name}: expected a tensor with memory; run the model or initialise it first")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"model {name}: expected a dense tensor, got {tensor.layout}, {tensor.dtype}")
    return TensorSpec(name, tuple(tensor.shape), tensor.dtype)


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    """A key, equal for tensors that are the same view of the same memory."""
    if tensor.numel() == 0:
        return (id(tensor),)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _check_apart(groups: list[TensorGroup]) -> None:
    """Raises ValueError: tensors share only part of their memory, which moving them would separate."""
    spans = []
    for group in groups:
        tensor = group.tensors[0]
        if tensor.numel():
            reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            spans.append((str(tensor.device), begin, begin + (reach + 1) * tensor.itemsize, group.spec.name))
    for (device, _, end, name), (next_device, begin, _, next_name) in pairwise(sorted(spans)):
        if device == next_device and begin < end:
            raise ValueError(f"model {name}, {next_name}: expected memory shared whole or not at all")


def _place(start: int, sizes: Sequence[int]) -> tuple[tuple[int, ...], int]:
    """Aligned offsets for items of the given sizes from `start` on, and the end of the last."""
    offsets = []
    for size in sizes:
        offsets.append(start)
        start += -(-size // _ALIGNMENT) * _ALIGNMENT
    return tuple(offsets), start


def _shape(name: str, shape: Any) -> tuple[int, ...]:
    """Raises ValueError, TypeError: it is no shape of a tensor in memory."""
    for extent in shape:
        check_whole(f"shape of {name}", extent, 0, MAX_BYTES)
    return tuple(shape)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"expected a torch dtype, got {name}")
    return dtype
