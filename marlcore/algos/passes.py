"""Forward and backward passes through a network: written out for fully connected layers, by autograd for others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from .dense import linear
from .head import Head
from .torso import Torso

__all__ = ["AutogradPass", "Layers", "LayersPass", "Pass"]


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
        self._torso = torso
        self._head = head
        self._layers = Layers([*torso.dense.layer_parameters, *head.layer_parameters])

    def covers(self, network: nn.Module) -> bool:
        """Whether the layers have all parameters of the network, each of them once, and all are trained."""
        found = [one for layer in self._layers.parameters for one in layer.values()]
        return sorted(map(id, found)) == sorted(map(id, network.parameters())) and all(p.requires_grad for p in found)

    def forward(self, obs: Any) -> torch.Tensor:
        return self._head.combined(self._layers.forward(self._torso.encoded(obs)))

    def backward(self, gradient: torch.Tensor) -> None:
        self._layers.backward(self._head.gradient_of_outputs(gradient))


class Layers:
    """Fully connected layers with ReLU between them: [B, inputs] to [B, outputs], and their gradients.

    They are those of autograd, on a CPU to the last bit. For two layers of 64 units, the products take a quarter of the
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
                gradient = torch.ops.aten.threshold_backward(torch.mm(gradient, weight), x, 0)
