"""Pairs of critics: two networks from an observation and an action to a value."""

import math
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from ...spaces import Spaces
from .own import TRIED, OwnTorso, torso_of
from .torso import ACTIVATIONS


class TwinCritics(nn.Module):
    """Two networks, or `pairs` times two, from an observation and an action to a value; they share no connected layer.

    Encoders of images are shared, and so is a network of the user's. Each layer of both networks is one batched
    product: for small networks, torch's overhead for each operation is most of their time.
    """

    def __init__(self, hyper: Any, spaces: Spaces, actions: int, pairs: int = 1) -> None:
        super().__init__()
        self.encoder = torso_of(hyper, spaces, ())
        *inner, last = pairwise((self.encoder.size + actions, *hyper.hidden, 1))
        self.layers = nn.ModuleList()
        for inputs, outputs in inner:
            layer = PairedLinear(inputs, outputs, pairs)
            self.layers.append(nn.Sequential(layer, PairedNorm(outputs, pairs)) if hyper.layer_norm else layer)
        self.layers.append(PairedLinear(*last, pairs))
        self.activation = ACTIVATIONS[hyper.activation]()

    def forward(self, obs: Any, action: torch.Tensor, count: int = 2) -> torch.Tensor:
        """The values [count, B] of actions [B, size] in [-1, 1], of the first network or of both."""
        return self.through(torch.cat([self.encoder(obs), action], 1).expand(count, -1, -1))

    def through(self, x: torch.Tensor) -> torch.Tensor:
        """The values [n, B] by the first n networks, each of its own inputs [n, B, inputs]."""
        *inner, last = self.layers
        for layer in inner:
            x = self.activation(layer(x))
        values: torch.Tensor = last(x)
        return values.squeeze(2)


class OwnCritics(nn.Module):
    """The two critics that a whole model of the user's has as its module `critics`."""

    def __init__(self, hyper: Any, spaces: Spaces, actions: int, network: nn.Module) -> None:
        super().__init__()
        self.critics = OwnTorso(hyper, spaces, network, called="critics", beside=(torch.zeros(TRIED, actions),))

    def forward(self, obs: Any, action: torch.Tensor, count: int = 2) -> torch.Tensor:
        """See `TwinCritics.forward`."""
        values: torch.Tensor = self.critics(obs, action)[:count]
        return values


class PairedLinear(nn.Module):
    """Pairs of fully connected layers of the same sizes, initialized as nn.Linear is."""

    def __init__(self, inputs: int, outputs: int, pairs: int = 1) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(2 * pairs, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(2 * pairs, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[count, B, inputs] to [count, B, outputs], through the first `count` layers."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


class PairedNorm(nn.Module):
    """Pairs of layer normalizations of the same size (Ba et al. 2016, arXiv:1607.06450)."""

    def __init__(self, size: int, pairs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2 * pairs, 1, size))
        self.bias = nn.Parameter(torch.zeros(2 * pairs, 1, size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[count, B, size] to the same shape, through the first `count` ones."""
        return functional.layer_norm(x, x.shape[-1:]) * self.weight[: len(x)] + self.bias[: len(x)]
