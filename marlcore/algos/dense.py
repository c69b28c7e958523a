"""Fully connected layers, applied without the overhead of modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

__all__ = ["Activation", "Dense", "linear"]

Activation = Callable[[torch.Tensor], torch.Tensor]  # changes its argument in place


class Dense(nn.Module):
    """Fully connected layers, each followed by an activation: [..., inputs] to [..., size].

    It computes what nn.Sequential of nn.Linear and nn.ReLU (or of another activation) computes, to the last bit.
    Calling those modules and looking up their parameters takes longer than a small network's products. So networks here
    keep their parts in tuples and call each part's `forward`: hooks on a whole network are called, hooks on its parts
    are not. The updates of DQN call no hooks at all (see passes.py).

    Attributes:
        size: the units of the last layer, `inputs` without layers.
        layer_parameters: each layer's, as `layer._parameters` has them.
    """

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: Activation = torch.relu_) -> None:
        super().__init__()
        self._activation = activation
        widths = (inputs, *sizes)
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in zip(widths, sizes, strict=False))
        self.size = widths[-1]
        # Their own dicts, so that a parameter that a module replaces is replaced here too, also in copies.
        self.layer_parameters: list[Mapping[str, Any]] = [layer._parameters for layer in self.layers]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for tensors in self.layer_parameters:
            x = self._activation(linear(tensors, x))
        return x


def linear(tensors: Mapping[str, Any], x: torch.Tensor) -> torch.Tensor:
    """What nn.Linear with these parameters (`layer._parameters`) computes."""
    return functional.linear(x, tensors["weight"], tensors["bias"])
