"""Which torch networks chains can stand for: fully connected layers with relu or tanh, and nothing else in between."""

from collections.abc import Sequence
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn.modules import module as of_torch

from ...compiled import Layer, widest
from ..networks.qnetwork import Head
from ..networks.torso import Flat, OneHot, StackedLinear, Torso

PACKAGE = __package__.removesuffix("compiled")  # with its dot
FORWARDS: dict[type, Any] = {kind: kind.forward for kind in (nn.Linear, nn.ReLU, nn.Tanh, nn.ModuleList, nn.Sequential)}
FORWARD = attrgetter("forward")
ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    of_torch._global_forward_hooks,
    of_torch._global_forward_pre_hooks,
    of_torch._global_backward_hooks,
    of_torch._global_backward_pre_hooks,
)
TRAINING = attrgetter("requires_grad", "_backward_hooks", "_post_accumulate_grad_hooks")
TRAINED_ALONE = (True, None, None)  # without hooks


class NotPlain(Exception):
    """A network has a part that no chain can stand for; the message names it."""


class Watched:
    """Tells whether networks are still as they were: no part replaced, hooked, frozen, moved or compiled.

    Raises: NotPlain: a part is of another kind than the package's and torch's own, or is one of these already.
    """

    def __init__(self, *networks: nn.Module, trained: bool = True) -> None:
        parts = [part for network in networks for part in network.modules()]
        for part in parts:
            if not is_plain(part):
                raise NotPlain(type(part).__name__)
        self._own = list(map(vars, parts))
        self._sizes = list(map(len, self._own))  # they grow if an attribute hides one of the class
        self._parts, self._kinds = parts, list(map(type, parts))
        self._each_kind = list(dict.fromkeys(self._kinds))
        self._forwards = list(map(FORWARD, self._each_kind))
        self._children = [part._modules for part in parts if part._modules]
        self._named = list(map(dict, self._children))
        self._hooks = [own[name] for own in self._own for name in HOOKS]
        self._held = [part._parameters for part in parts if part._parameters]
        self._tensors: list[Any] = list(self._each())
        self._trained = trained
        for tensor in self._tensors:
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
                raise NotPlain(f"a tensor of {tensor.dtype} on {tensor.device}")
        self._addresses = list(map(torch.Tensor.data_ptr, self._tensors))
        if not self.holds():
            raise NotPlain("a part with a hook, or a tensor that is not trained")

    def _each(self) -> Any:
        return chain.from_iterable(map(dict.values, self._held))

    def holds(self) -> bool:
        """Returns whether nothing has changed; takes some microseconds."""
        return (
            all(map(is_, self._each(), self._tensors))
            and list(map(torch.Tensor.data_ptr, self._tensors)) == self._addresses
            and (not self._trained or all(map(TRAINED_ALONE.__eq__, map(TRAINING, self._tensors))))
            and self._children == self._named
            and list(map(len, self._own)) == self._sizes
            and not any(self._hooks)
            and not any(GLOBAL_HOOKS)
            and list(map(type, self._parts)) == self._kinds
            and list(map(FORWARD, self._each_kind)) == self._forwards
        )


def is_plain(part: nn.Module) -> bool:
    """Returns whether a call runs only a `forward` of the package or torch, and the part hides no class attribute."""
    kind, own = type(part), vars(part)
    if kind.forward is nn.Module.forward:
        return True  # it cannot be called
    if kind in FORWARDS:
        plain = kind.forward is FORWARDS[kind]
    else:
        plain = kind.__module__.startswith(PACKAGE) and kind.forward.__module__.startswith(PACKAGE)
    if not plain or any(hasattr(kind, name) for name in own):
        return False
    return kind is not nn.Linear or own["_parameters"].keys() == {"weight", "bias"}  # else they are plain tensors


def fits(*networks: nn.Module) -> bool:
    """Returns whether chains are faster than torch for layers of these widths, on this processor."""
    return all(max(tensor.shape, default=1) <= widest() for part in networks for tensor in part.parameters())


def layers_of(*parts: nn.Module) -> tuple[list[Layer], list[nn.Module]]:
    """Returns the layers of parts that are called one after another, and the module of each layer's weight and bias.

    Raises: NotPlain: a part is no Torso of values or one-hot vectors, no Head, and no fully connected layer.
    """
    layers: list[Layer] = []
    modules: list[nn.Module] = []

    def add(linear: nn.Module, activation: nn.Module | None) -> None:
        if type(linear) is not nn.Linear or linear.bias is None:
            raise NotPlain(type(linear).__name__)
        name = None if activation is None else ACTIVATIONS.get(type(activation))
        if activation is not None and name is None:
            raise NotPlain(type(activation).__name__)
        layers.append(Layer(linear.in_features, linear.out_features, name))
        modules.append(linear)

    part: Any
    for part in parts:
        if type(part) is Torso:
            for encoder in part.encoders:
                if type(encoder) not in (Flat, OneHot):
                    raise NotPlain(type(encoder).__name__)
            part = part.dense
        if hasattr(part, "layers"):
            for linear in part.layers:
                add(linear, part.activation)
        elif type(part) is Head:
            add(part.hidden, part.activation)
            add(part.output, None)
        else:
            add(part, None)
    return layers, modules


def stacked_layers(stack: Sequence[nn.Module], activation: nn.Module) -> list[Layer]:
    """Returns the layers of each network of a stack; the last has no activation. Raises NotPlain, as `layers_of`."""
    layers = []
    for linear in stack:
        if type(linear) is not StackedLinear or type(activation) not in ACTIVATIONS:
            raise NotPlain(type(linear if type(linear) is not StackedLinear else activation).__name__)
        _, inputs, outputs = linear.weight.shape
        name = None if linear is stack[-1] else ACTIVATIONS[type(activation)]
        layers.append(Layer(inputs, outputs, name, inputs_first=True))
    return layers


def arrays_of(modules: Sequence[nn.Module], gradients: bool = False) -> list[NDArray[Any]]:
    """Returns views of each module's weight and bias in turn, or of their gradients."""
    tensors: list[Any] = [getattr(module, name) for module in modules for name in ("weight", "bias")]
    return [(tensor.grad if gradients else tensor.detach()).numpy() for tensor in tensors]
