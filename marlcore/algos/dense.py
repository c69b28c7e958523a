"""Fully connected layers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from .network import Network, Operation, activated

__all__ = ["Activation", "Dense"]

Activation = Callable[[torch.Tensor], torch.Tensor]


class Dense(Network):
    """Fully connected layers, each followed by an activation: [..., inputs] to [..., size].

    Attributes:
        size: the units of the last layer, `inputs` without layers.
    """

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: Activation = torch.relu) -> None:
        super().__init__()
        self._activation = activation
        widths = (inputs, *sizes)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, sizes, strict=False))
        self.size = widths[-1]

    @property
    def rectifies(self) -> bool:
        """Whether the activation is ReLU."""
        return self._activation is torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self._activation(layer(x))
        return x

    def operations(self) -> list[Operation]:
        return [one for layer in self.layers for one in activated(layer, self._activation)] or [lambda x: x]
