"""A pair of critics: two estimates of an action's value, computed together."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from ...spaces import Spaces
from .torso import Torso


class TwinCritics(nn.Module):
    """Two networks from an observation and an action to a value, which share no fully connected layer.

    Encoders of images are shared. Each layer of both networks is one batched product: for small networks, torch's
    overhead for each operation is most of their time.
    """

    def __init__(self, spaces: Spaces, actions: int, hidden: tuple[int, ...]) -> None:
        super().__init__()
        self.encoder = Torso(spaces, ())
        widths = (self.encoder.size + actions, *hidden, 1)
        self.layers = nn.ModuleList(PairedLinear(*pair) for pair in pairwise(widths))

    def forward(self, obs: Any, action: torch.Tensor, count: int = 2) -> torch.Tensor:
        """The values [count, B] of actions [B, size] in [-1, 1], of the first network or of both."""
        x = torch.cat([self.encoder(obs), action], 1).expand(count, -1, -1)
        *inner, last = self.layers
        for layer in inner:
            x = torch.relu(layer(x))
        values: torch.Tensor = last(x)
        return values.squeeze(2)


class PairedLinear(nn.Module):
    """Two fully connected layers of the same sizes, initialized as nn.Linear is.

    Attributes:
        weight: [2, inputs, outputs]. bias: [2, 1, outputs].
    """

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(2, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(2, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[count, B, inputs] to [count, B, outputs], through the first layer or both."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])
