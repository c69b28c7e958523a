"""Weights of torch users: the tensors of a module become views of a row."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise, repeat, zip_longest
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.overrides import has_torch_function

from ..accelerator import DeviceRow, kind_of
from ..checks import brief
from ..errors import LayoutMismatch
from .layout import OWN, RowLayout, TensorSpec
from .members import members_kept

SWAP_BYTES = 16_384  # bytes whose copy takes as long as making one tensor a view of another row

_same_view = torch.Tensor.is_set_to
_address_of = torch.Tensor.data_ptr
_dtype_of = attrgetter("dtype")


@dataclass
class TensorGroup:
    """A tensor of a model, with all its names; tied weights form one group."""

    spec: TensorSpec
    names: list[str] = field(default_factory=list)
    tensors: list[torch.Tensor] = field(default_factory=list)


class ModuleWeights:
    """A model whose parameters and buffers are views of one row, uint8 [layout.nbytes] on the model's device.

    Parameter objects stay the same, so optimizers stay valid; tied tensors stay tied, frozen ones frozen. Tensors
    become contiguous. The row holds non-persistent buffers, too. With `fill`, a large model on the CPU has two rows,
    which take turns: `load` makes the tensors views of the other row, so that a pull is one copy.

    Attributes:
        device_row: the weights of a model on an accelerator (rows in host memory then hold only extras), or None.

    Raises:
        LayoutMismatch: the model's tensors differ from the layout.
        ValueError: a tensor cannot be stored, or the tensors are on several devices.
    """

    def __init__(self, model: torch.nn.Module, layout: RowLayout, fill: bool) -> None:
        self.weights = model
        self.layout = layout
        self._fill = fill
        self._bind()

    @staticmethod
    def specs(model: torch.nn.Module) -> tuple[TensorSpec, ...]:
        """Returns the specs of a module's tensors. Raises ValueError if a tensor cannot be stored."""
        return tuple(group.spec for group in _unique_tensors(model))

    def _bind(self) -> None:
        """Copies the model's tensors into a new row, and makes them views of it; after an error, none was changed."""
        groups = self._fitting_groups()
        tensors = [tensor for group in groups for tensor in group.tensors]
        device = tensors[0].device if tensors else None
        # A row made in inference mode could be written only there.
        with torch.inference_mode(False), torch.no_grad():
            row = torch.zeros(self.layout.nbytes, dtype=torch.uint8, device=device)
            rows, on_host = [row], kind_of(row) == "cpu"
            filled = [torch.zeros_like(row)] if self._fill else rows
            if self._fill and on_host and len(row) >= SWAP_BYTES * len(tensors):
                filled = rows = [row, *filled]
            pairs = [zip(groups, self.views(each), strict=True) for each in rows]
            views = [[view for group, view in each for _ in group.tensors] for each in pairs]
            for tensor, view in zip(tensors, views[0], strict=True):
                view.copy_(tensor)
            for tensor, view in zip(tensors, views[0], strict=True):
                tensor.data = view
        self._rows, self._filled = rows, filled  # the model's rows, and the rows into which pulls copy
        self._arrays = [each.numpy() for each in filled] if on_host else [np.zeros(len(row), np.uint8)]
        end = self.layout.tensor_bytes
        self.device_row = None if on_host else DeviceRow(row[:end], filled[0][:end])
        self.turn = 0
        self.groups = groups
        self._has_members = members_kept(self.weights)
        self._tensors = tensors
        self._dtypes = list(map(_dtype_of, views[0]))
        self._addresses = list(map(_address_of, rows))
        self._views = views  # last, so that `moved` is True after an earlier interrupt

    def _fitting_groups(self) -> list[TensorGroup]:
        groups = _unique_tensors(self.weights)
        for index, (expected, got) in enumerate(zip_longest(self.layout.tensors, [group.spec for group in groups])):
            if expected != got:
                nothing = "no further tensor"
                raise LayoutMismatch(f"model tensor {index}: expected {expected or nothing}, got {got or nothing}")
        devices = {group.tensors[0].device for group in groups}
        if len(devices) > 1:
            raise ValueError(f"model: expected all tensors on one device, got {sorted(map(str, devices))}")
        return groups

    def moved(self) -> bool:
        """Returns whether a tensor of the model is no longer a view of its row; takes about 1 us per tensor.

        Causes are Module.to, load_state_dict(assign=True), share_memory, and assigned parameters, buffers or modules.
        """
        return (
            not self._has_members()
            or not all(map(_same_view, self._tensors, self._views[self.turn]))  # storage, offset, shape and strides
            or list(map(_dtype_of, self._tensors)) != self._dtypes
            or list(map(_address_of, self._rows)) != self._addresses  # share_memory moves a storage in place
        )

    def rows(self) -> list[NDArray[np.uint8]]:
        if self.moved():
            self._bind()
        return self._arrays

    def staged(self, weights: Any = OWN) -> NDArray[np.uint8]:
        if weights is not OWN:
            raise TypeError(f"weights: expected none, since the publisher has a module, got {brief(weights)}")
        row = self.rows()[0]
        if self.device_row is not None:
            self.device_row.settle()
        return row

    def load(self) -> None:
        if len(self._rows) == 1 or has_torch_function(self._tensors):
            self._rows[self.turn].copy_(self._filled[self.turn - 1])
            return
        turn = 1 - self.turn
        # One C call, in which no signal is handled: an exception between two tensors would leave a mixture of versions.
        deque(map(setattr, self._tensors, repeat("data"), self._views[turn]), maxlen=0)
        self.turn = turn  # last, so that `moved` is True after an earlier interrupt

    def views(self, row: torch.Tensor | NDArray[np.uint8]) -> list[torch.Tensor]:
        """Returns the model's tensors as views of a row, which is uint8 [nbytes] and aligned to 64 bytes."""
        flat = torch.from_numpy(row) if isinstance(row, np.ndarray) else row
        return [part.view(_dtype(spec)).view(spec.shape) for spec, part in self.layout.parts(flat)]

    def named(self, views: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the views by name; a tied tensor appears once for each of its names."""
        return {name: view for group, view in zip(self.groups, views, strict=True) for name in group.names}


def _unique_tensors(model: torch.nn.Module) -> list[TensorGroup]:
    """Groups parameters and buffers by memory, in module order. Raises ValueError if a tensor cannot be stored."""
    groups: dict[tuple[Any, ...], TensorGroup] = {}
    for prefix, path, module in _modules(model):
        for key, tensor in chain(module._parameters.items(), module._buffers.items()):
            if tensor is None:
                continue
            spec = _spec(_below(path, key), tensor)
            group = groups.setdefault(_memory(tensor), TensorGroup(spec))
            group.names.append(_below(prefix, key))
            if not any(tensor is other for other in group.tensors):
                group.tensors.append(tensor)
    _check_apart(list(groups.values()))
    return list(groups.values())


def _modules(model: torch.nn.Module) -> Iterator[tuple[str, str, torch.nn.Module]]:
    """Yields (name, name without the wrappers' parts, module) of each module."""
    paths: dict[str, str] = {}
    inside = set()  # the names of wrapped modules
    for name, module in model.named_modules(remove_duplicate=False):
        parent, _, last = name.rpartition(".")
        above = paths.get(parent, "")
        paths[name] = above if name in inside else _below(above, last)
        if isinstance(module, (DataParallel, DistributedDataParallel)):
            inside.add(_below(name, "module"))
        elif "_orig_mod" in module._modules:  # of torch.compile
            inside.add(_below(name, "_orig_mod"))
        yield name, paths[name], module


def _below(name: str, part: str) -> str:
    return f"{name}.{part}" if name else part


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
    """Raises ValueError if two tensors overlap in memory without being the same, since a row would separate them."""
    spans = []
    for group in groups:
        tensor = group.tensors[0]
        if tensor.numel():
            reach = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
            begin = tensor.data_ptr()
            spans.append((str(tensor.device), begin, begin + (reach + 1) * tensor.itemsize, group.spec.name))
    for (device, _, end, name), (next_device, begin, _, next_name) in pairwise(sorted(spans)):
        if device == next_device and begin < end:
            raise ValueError(f"model {name}, {next_name}: expected tensors that share all of their memory, or none")


def _dtype(spec: TensorSpec) -> torch.dtype:
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"model {spec.name}: expected a dtype of torch, got {spec.dtype}")
    return dtype
