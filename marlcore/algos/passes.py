"""Forward and backward passes through a network: written out for fully connected layers, by autograd for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from .dense import Dense
from .head import Head
from .network import Network, Plan, is_known, linear
from .torso import Torso

__all__ = ["AutogradPass", "Layers", "LayersPass", "Pass", "Passes"]


_threshold_backward = torch.ops.aten.threshold_backward.default  # once: finding it takes longer than running it


class Pass(Protocol):
    """A forward pass, then its backward pass; call both without recording by autograd."""

    def forward(self, obs: Any) -> torch.Tensor:
        """The network's outputs [B, outputs]."""

    def backward(self, gradient: torch.Tensor) -> None:
        """Puts the gradients of the parameters into their `grad`, which the caller zeroed.

        Args:
            gradient: of the loss, with respect to the last outputs [B, outputs].
        """


class AutogradPass:
    """The passes of any network."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network

    def forward(self, obs: Any) -> torch.Tensor:
        with torch.enable_grad():
            self._outputs = self._network(obs)
        detached: torch.Tensor = self._outputs.detach()
        return detached

    def backward(self, gradient: torch.Tensor) -> None:
        torch.autograd.backward(self._outputs, gradient)
        del self._outputs


class LayersPass:
    """The passes of a torso whose activation is ReLU, and of a head."""

    def __init__(self, torso: Torso, head: Head) -> None:
        self._encoded = torso.operations()[0]
        self._head = head
        self._layers = Layers([layer._parameters for layer in (*torso.dense.layers, head.hidden, head.output)])

    def covers(self, network: nn.Module) -> bool:
        """Whether the layers have all parameters of the network, each of them once."""
        tensors = [one for layer in self._layers.parameters for one in layer.values()]
        return sorted(map(id, tensors)) == sorted(map(id, network.parameters()))

    def trains_all(self) -> bool:
        """Whether autograd would do no less and no more: all parameters are trained, and none has a hook."""
        for layer in self._layers.parameters:
            for one in layer.values():
                if not one.requires_grad or one._backward_hooks or one._post_accumulate_grad_hooks:
                    return False
        return True

    def forward(self, obs: Any) -> torch.Tensor:
        return self._head.combined(self._layers.forward(self._encoded(obs)))

    def backward(self, gradient: torch.Tensor) -> None:
        self._layers.backward(self._head.gradient_of_outputs(gradient))


class Passes:
    """Chooses a network's passes before each update: written out ones where they apply.

    Args:
        network: any.
        kind: of the networks that are a torso and a head.
    """

    def __init__(self, network: nn.Module, kind: type[Network]) -> None:
        self._network = network
        self._kind = kind
        self._plan: Plan | None = None
        self._layers: LayersPass | None = None
        self._autograd = AutogradPass(network)

    def now(self) -> Pass:
        """The passes for the network as it is; hooked, replaced, compiled and frozen parts take those of autograd."""
        plan = self._network.plan() if type(self._network) is self._kind else None
        if plan is not self._plan:
            self._plan, self._layers = plan, None if plan is None else _layers_pass(self._network)
        return self._layers if self._layers is not None and self._layers.trains_all() else self._autograd


def _layers_pass(network: Any) -> LayersPass | None:
    torso, head = network.torso, network.head
    if type(torso) is not Torso or type(head) is not Head or type(torso.dense) is not Dense:
        return None
    parts = (torso, head, torso.dense, *torso.dense.layers, head.hidden, head.output)
    if not all(map(is_known, parts)) or not torso.dense.rectifies:
        return None
    layers = LayersPass(torso, head)
    return layers if layers.covers(network) else None


class Layers:
    """Fully connected layers with ReLU between them: [B, inputs] to [B, outputs], and their gradients.

    They are those of autograd. For two layers of 64 units, the products take a quarter of the
    time that autograd takes with them.

    Args:
        parameters: each layer's, as `layer._parameters` has them.
    """

    def __init__(self, parameters: Sequence[Mapping[str, Any]]) -> None:
        self.parameters = list(parameters)
        self._inputs: list[torch.Tensor] = []  # of each layer, in the last forward pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._inputs = [x]
        for tensors in self.parameters[:-1]:
            x = linear(tensors, x).relu_()
            self._inputs.append(x)
        return linear(self.parameters[-1], x)

    def backward(self, gradient: torch.Tensor) -> None:
        """See Pass."""
        for tensors in reversed(self.parameters):
            weight, x = tensors["weight"], self._inputs.pop()
            torch.mm(gradient.t(), x, out=weight.grad)
            torch.sum(gradient, 0, out=tensors["bias"].grad)
            if self._inputs:  # x is the output of a ReLU: positive where its input was
                gradient = _threshold_backward(torch.mm(gradient, weight), x, 0)
