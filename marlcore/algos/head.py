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

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        hidden, output, buffers = self._tensors
        values = linear(output, linear(hidden, features).relu_())
        if not self.dueling:
            return values
        combined = torch.matmul(values, buffers["aggregate"])
        return combined if self.few else values[..., :-1] + combined
