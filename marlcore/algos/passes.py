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
    """The passes of a network that is a torso and a head, all of whose parameters are those of their layers."""

    def __init__(self, torso: Torso, head: Head) -> None:
        self._torso = torso
        self._head = head
        self._layers = Layers([*torso.dense.tensors, *head.tensors])

    def forward(self, obs: Any) -> torch.Tensor:
        return self._head.combined(self._layers.forward(self._torso.encoded(obs)))

    def backward(self, gradient: torch.Tensor) -> None:
        self._layers.backward(self._head.of_outputs(gradient))


class Layers:
    """Fully connected layers with ReLU between them: [B, inputs] to [B, outputs], and their gradients.

    They are those of autograd, to the last bit. For two layers of 64 units, the products take a quarter of the time
    that autograd takes with them.

    Args:
        tensors: each layer's parameters, as `layer._parameters` has them.
    """

    def __init__(self, tensors: Sequence[Mapping[str, Any]]) -> None:
        self._tensors = list(tensors)
        self._inputs: list[torch.Tensor] = []  # of each layer, in the last forward pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._inputs = [x]
        for tensors in self._tensors[:-1]:
            x = linear(tensors, x).relu_()
            self._inputs.append(x)
        return linear(self._tensors[-1], x)

    def backward(self, gradient: torch.Tensor) -> None:
        """See Pass."""
        for tensors in reversed(self._tensors):
            weight, x = tensors["weight"], self._inputs.pop()
            torch.mm(gradient.t(), x, out=weight.grad)
            torch.sum(gradient, 0, out=tensors["bias"].grad)
            if self._inputs:  # x is the output of a ReLU: positive where its input was
                gradient = torch.ops.aten.threshold_backward(torch.mm(gradient, weight), x, 0)
