"""The head of a value network: features to a value for each action."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from .dense import linear

__all__ = ["Head"]

FEW = 64  # actions; for more, the product with a square matrix takes longer than a slice and a sum


class Head(nn.Module):
    """Features [..., inputs] to one value per action [..., actions], through a layer of `hidden` units.

    With `dueling`, that layer feeds the state's value and the actions' advantages, minus their mean (Wang et al. 2016,
    arXiv:1511.06581, equation 9). Both share the layer, so dueling costs little. As in `Dense`, hooks on the layers are
    not called.
    """

    aggregate: torch.Tensor

    def __init__(self, inputs: int, hidden: int, actions: int, dueling: bool) -> None:
        super().__init__()
        self.dueling = dueling
        self.few = actions <= FEW
        self.hidden = nn.Linear(inputs, hidden)
        self.output = nn.Linear(hidden, actions + dueling)
        self._tensors: tuple[Mapping[str, Any], ...] = (self.hidden._parameters, self.output._parameters, self._buffers)
        # Applied to the advantages and the value: the value minus the mean advantage.
        rest = torch.cat([torch.full((actions, 1), -1 / actions), torch.ones(1, 1)])
        # For few actions one product adds the advantage too.
        whole = rest + torch.eye(actions + 1, actions) if self.few else rest
        self.register_buffer("aggregate", whole, persistent=False)

    @property
    def layer_parameters(self) -> tuple[Mapping[str, Any], ...]:
        """Each layer's, as `layer._parameters` has them."""
        return self._tensors[:2]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden, output, _ = self._tensors
        return self.combined(linear(output, linear(hidden, features).relu_()))

    def combined(self, outputs: torch.Tensor) -> torch.Tensor:
        """The values [..., actions], for the outputs of the last layer."""
        if not self.dueling:
            return outputs
        values = torch.matmul(outputs, self._tensors[2]["aggregate"])
        return values if self.few else outputs[..., :-1] + values

    def gradient_of_outputs(self, gradient: torch.Tensor) -> torch.Tensor:
        """A gradient with respect to the values, [..., actions], as one with respect to the last layer's outputs."""
        if not self.dueling:
            return gradient
        transposed = self._tensors[2]["aggregate"].t()
        if self.few:
            return torch.matmul(gradient, transposed)
        found = torch.matmul(gradient.sum(-1, keepdim=True), transposed)
        found[..., :-1] += gradient
        return found
