"""Finds the torch networks that a chain can replace: fully connected layers, with relu, tanh or nothing in between."""

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.hooks import RemovableHandle

from ...compiled import Chain, Layer, widest
from ..networks.distributions import Gaussian
from ..networks.plain_parts import GLOBAL_HOOKS, HOOKS, is_plain
from ..networks.qnetwork import Head
from ..networks.torso import Flat, OneHot, StackedLinear, Torso

ACTIVATIONS: dict[type, str] = {nn.ReLU: "relu", nn.Tanh: "tanh"}
OTHER_SIZES = "layers of other sizes"
TENSOR_HOOKS = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")


class NotPlain(Exception):
    """Raised if no chain can replace a part of a network; the message names the part."""


class Watched:
    """Tells whether networks are unchanged since the start: no part replaced, hooked, frozen, moved or compiled.

    Raises NotPlain if, at first, a part is hooked, frozen or not on the CPU, or is not the package's or torch's own.
    """

    def __init__(self, *networks: nn.Module, trained: bool = True) -> None:
        parts = [part for network in networks for part in network.modules()]
        for part in parts:
            if not is_plain(part) or isinstance(part, nn.RNNBase):
                raise NotPlain(type(part).__name__)
        for part in parts:
            vars(part).setdefault("_plan", None)  # which `faster` of stand_in.py may set later
        named = [pair for network in networks for pair in network.named_modules(remove_duplicate=False)]
        places: list[tuple[Any, str]] = [(part._parameters, name) for _, part in named for name in part._parameters]
        tensors = [parameters[name] for parameters, name in places]
        for tensor in tensors:
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
                raise NotPlain(f"a tensor of {tensor.dtype} on {tensor.device}")
        if len(set(map(id, tensors))) < len(tensors):
            raise NotPlain("weights that parts share")
        self._hooks = [vars(part)[name] for part in parts for name in HOOKS]
        self._trained = tensors if trained else []
        self._handles = RemovableHandle.next_id
        if self._is_hooked() or not all(tensor.requires_grad for tensor in self._trained):
            raise NotPlain("a part with a hook, or a tensor that is not trained")
        # `vars` grows if an attribute hides one of the class
        self._parts = [(part, type(part), vars(part), len(vars(part))) for part in parts]
        self._forwards = [(kind, kind.forward) for kind in {type(part) for part in parts}]
        self._children = [part._modules for part in parts if part._modules]
        self._named = list(map(dict, self._children))
        self._counts = [(part._parameters, len(part._parameters)) for part in parts if part._parameters]
        self._tensors = [(*place, tensor, tensor.data_ptr()) for place, tensor in zip(places, tensors, strict=True)]

    def _is_hooked(self) -> bool:
        return any(self._hooks) or any(GLOBAL_HOOKS) or any(map(any, map(TENSOR_HOOKS, self._trained)))

    def holds(self) -> bool:
        """Returns whether all networks are unchanged. The loops are written out, so that it takes 1.5 microseconds."""
        if RemovableHandle.next_id != self._handles:  # some module got a hook
            if self._is_hooked():
                return False
            self._handles = RemovableHandle.next_id
        for part, kind, attributes, size in self._parts:
            if type(part) is not kind or len(attributes) != size:
                return False
        for kind, forward in self._forwards:
            if kind.forward is not forward:
                return False
        for parameters, count in self._counts:
            if len(parameters) != count:
                return False
        for parameters, name, tensor, place in self._tensors:
            if parameters.get(name) is not tensor or tensor.data_ptr() != place or not tensor.requires_grad:
                return False
        return self._children == self._named


def check_deviations(distribution: Any) -> None:
    """Raises NotPlain unless a Gaussian's standard deviations are parameters, one for each output."""
    if type(distribution) is Gaussian:
        deviations = distribution._parameters.get("log_std")
        if deviations is None or deviations.shape != (distribution.outputs,):
            raise NotPlain("standard deviations of another kind")


def fits(*networks: nn.Module) -> bool:
    """Returns whether all layers are narrow enough that, on this processor, chains are faster than torch."""
    return all(max(tensor.shape, default=1) <= widest() for part in networks for tensor in part.parameters())


def layers_of(*parts: nn.Module) -> tuple[list[Layer], list[nn.Module]]:
    """Returns the layers of parts that are called one after another, and the module of each layer's weight and bias.

    Raises NotPlain if a part is neither a Torso of numbers or one-hot vectors, nor a Head, nor a fully connected layer;
    if the first of several parts is no Torso; or if a layer does not fit the outputs of the layer before.
    """
    layers: list[Layer] = []
    modules: list[nn.Module] = []
    inputs: Any = None  # how many numbers the next layer gets, if this is known
    if len(parts) > 1 and type(parts[0]) is not Torso:
        raise NotPlain(type(parts[0]).__name__)

    def add(linear: nn.Module, activation: nn.Module | None) -> None:
        nonlocal inputs
        if type(linear) is not nn.Linear or linear.bias is None:
            raise NotPlain(type(linear).__name__)
        if linear.weight.shape != (linear.out_features, inputs or linear.in_features):
            raise NotPlain(OTHER_SIZES)
        inputs = linear.out_features
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
            inputs = sum(encoder.size for encoder in part.encoders)
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


def chain_of(*parts: nn.Module, trains: bool = False) -> Chain:
    """Returns a chain of the parts' layers, bound to the parts' present tensors and, with `trains`, their gradients."""
    layers, modules = layers_of(*parts)
    chain = Chain(layers, trains)
    chain.bind(arrays_of(modules), arrays_of(modules, gradients=True) if trains else [])
    return chain


def stacked_layers(stack: Sequence[nn.Module], activation: nn.Module) -> list[Layer]:
    """Returns the layers of one network of a stack, the last without activation. Raises NotPlain like `layers_of`."""
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
