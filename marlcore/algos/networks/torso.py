"""The first layers of a network, for any observation, and pairs of critics on them."""

import math
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import nn

from ...spaces import Spaces
from .encoders import encoder_of

Activation = Literal["tanh", "relu"]


class Dense(nn.Module):
    """Fully connected layers, each followed by an activation: [..., inputs] to [..., size]."""

    def __init__(self, inputs: int, sizes: tuple[int, ...], activation: Activation = "relu") -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise((inputs, *sizes)))
        self.activation = nn.ReLU() if activation == "relu" else nn.Tanh()
        self.size = (inputs, *sizes)[-1]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


class Torso(nn.Module):
    """Observations to features [B, size]: an encoder for each part, then fully connected layers of the sizes `hidden`.

    A mask in the observation is no input, nor are the parts that `without` names.
    """

    def __init__(
        self, spaces: Spaces, hidden: tuple[int, ...], activation: Activation = "relu", without: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        parts = [part for part in spaces.parts if part.name not in without]
        self.names = [part.name for part in parts] if isinstance(spaces.obs, dict) else None
        encoders = [encoder_of(part.space, spaces.stack) for part in parts]
        self.encoders = nn.ModuleList(encoders)
        self.dense = Dense(sum(encoder.size for encoder in encoders), hidden, activation)
        self.size = self.dense.size

    def forward(self, obs: Any) -> torch.Tensor:
        if self.names is None:
            encoded = self.encoders[0](obs)
        else:
            encoders = zip(self.encoders, self.names, strict=True)
            encoded = torch.cat([encoder(obs[name]) for encoder, name in encoders], 1)
        features: torch.Tensor = self.dense(encoded)
        return features


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
    """Two fully connected layers of the same sizes, initialized as nn.Linear is."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(2, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(2, 1, outputs).uniform_(-bound, bound))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[count, B, inputs] to [count, B, outputs], through the first layer or both."""
        return torch.baddbmm(self.bias[: len(x)], x, self.weight[: len(x)])


def rows_in(obs: Any) -> int:
    return len(obs if isinstance(obs, torch.Tensor) else next(iter(obs.values())))
