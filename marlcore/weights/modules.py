"""Weights of torch users: a module whose tensors are views of a row."""

from dataclasses import dataclass, field
from itertools import chain, pairwise, zip_longest
from operator import attrgetter, is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..checks import brief
from ..errors import LayoutMismatch
from .layout import OWN, RowLayout, TensorSpec
from .members import members_kept

_same_view = torch.Tensor.is_set_to
_dtype_of = attrgetter("dtype")


@dataclass
class TensorGroup:
    """A tensor of a model with all its names; tied weights form one group."""

    spec: TensorSpec
    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)


class ModuleWeights:
    """A model whose parameters and buffers are views of one row, uint8 [layout.nbytes] on the model's device.

    Parameter objects stay the same, so optimizers stay valid; tied tensors stay tied, frozen ones frozen. Tensors
    become contiguous. The row holds non-persistent buffers too.

    Raises:
        LayoutMismatch: the model's tensors differ from the layout.
        ValueError: see `_unique_tensors`; or the tensors are on several devices.
    """

    def __init__(self, model: torch.nn.Module, layout: RowLayout, fill: bool) -> None:
        self._model = model
        self.layout = layout
        self.bind()

    @staticmethod
    def specs(model: torch.nn.Module) -> tuple[TensorSpec, ...]:
        """Returns the specs of a module's tensors. Raises ValueError: as `_unique_tensors`."""
        return tuple(group.spec for group in _unique_tensors(model))

    def bind(self) -> None:
        """Copies the model's tensors into a new row and makes them views of it; after an error, none has moved."""
        groups = _unique_tensors(self._model)
        for index, (expected, got) in enumerate(zip_longest(self.layout.tensors, [group.spec for group in groups])):
            if expected != got:
                nothing = "no further tensor"
                raise LayoutMismatch(f"model tensor {index}: expected {expected or nothing}, got {got or nothing}")
        devices = {group.tensors[0].device for group in groups}
        if len(devices) > 1:
            raise ValueError(f"model: expected all tensors on one device, got {sorted(map(str, devices))}")
        # A row made in inference mode could not be written outside of it.
        with torch.inference_mode(False), torch.no_grad():
            row = torch.zeros(self.layout.nbytes, dtype=torch.uint8, device=next(iter(devices), None))
            views = self.views(row)
            for group, view in zip(groups, views, strict=True):
                view.copy_(group.tensors[0])
            tensors = [tensor for group in groups for tensor in group.tensors]
            views = [view for group, view in zip(groups, views, strict=True) for _ in group.tensors]
            for tensor, view in zip(tensors, views, strict=True):
                tensor.data = view
        self.row = row
        self.groups = groups
        self._staged: torch.Tensor | None = None
        self._has_members = members_kept(self._model)
        self._tensors, self._views = tensors, views
        self._dtypes = [view.dtype for view in views]
        self._address = row.data_ptr()

    def moved(self) -> bool:
        """Returns whether any tensor of the model is no longer a view of the row; takes about 1 us per tensor.

        Causes are Module.to, load_state_dict(assign=True), share_memory, and assigned parameters, buffers or modules.
        """
        return (
            not self._has_members()
            or not all(map(_same_view, self._tensors, self._views))  # storage, offset, shape and strides
            or not all(map(is_, map(_dtype_of, self._tensors), self._dtypes))
            or self.row.data_ptr() != self._address  # share_memory moves a storage in place
        )

    def staged(self, weights: Any = OWN) -> NDArray[np.uint8]:
        if weights is not OWN:
            raise TypeError(f"weights: expected none, since the publisher has a module, got {brief(weights)}")
        if self.moved():
            self.bind()
        if self._staged is None:
            staged = self.row if self.row.device.type == "cpu" else self._host_row()
            self._staged_array = staged.numpy()
            self._staged = staged  # last: if an interrupt comes earlier, the next call stages again
        if self._staged is not self.row:
            end = self.layout.tensor_bytes
            self._staged[:end].copy_(self.row[:end])
        return self._staged_array

    def scratch(self) -> NDArray[np.uint8]:
        self._scratch = self._host_row()
        return self._scratch.numpy()

    def load(self) -> None:
        if self.moved():
            self.bind()
        self.row.copy_(self._scratch)

    def views(self, row: torch.Tensor | NDArray[np.uint8]) -> list[torch.Tensor]:
        """Returns the model's tensors as views of a row, which is uint8 [nbytes] and aligned to 64 bytes."""
        flat = torch.from_numpy(row) if isinstance(row, np.ndarray) else row
        return [part.view(_dtype(spec)).view(spec.shape) for spec, part in self.layout.parts(flat)]

    def named(self, views: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the views by all names that the module has for them: a tied tensor appears several times."""
        return {name: view for group, view in zip(self.groups, views, strict=True) for name in group.names}

    def _host_row(self) -> torch.Tensor:
        pin = self.row.device.type == "cuda"  # which speeds up copies
        with torch.inference_mode(False):
            return torch.zeros(self.layout.nbytes, dtype=torch.uint8, pin_memory=pin)


def _unique_tensors(model: torch.nn.Module) -> list[TensorGroup]:
    """Groups parameters and buffers by memory, in module order. Raises ValueError: a tensor cannot be stored."""
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


def _spec(name: str, tensor: torch.Tensor) -> TensorSpec:
    if torch.nn.parameter.is_lazy(tensor) or tensor.device.type == "meta":
        raise ValueError(f"model {name}: expected a tensor with memory; run the model or initialise it first")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise ValueError(f"model {name}: expected a dense tensor, got {tensor.layout}, {tensor.dtype}")
    return TensorSpec(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def _memory(tensor: torch.Tensor) -> tuple[Any, ...]:
    if tensor.numel() == 0:
        return (id(tensor),)
    return tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _check_apart(groups: list[TensorGroup]) -> None:
    """Raises ValueError if tensors share a part of their memory, since a row would separate them."""
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


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"model {spec.name}: expected a dtype of torch, got {spec.dtype}")
    return dtype
