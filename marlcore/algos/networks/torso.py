"""The first layers of a network, for any observation."""

from __future__ import annotations

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
    """Observations, as `Algorithm.make_model` says, to features [B, size].

    Each part of the observation has its encoder (see encoders.py); fully connected layers of the sizes `hidden` follow
    on what these return, one after another in the order of `Spaces.parts`. A mask in the observation is no input, nor
    are the parts that `without` names.
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


def rows_in(obs: Any) -> int:
    return len(obs if isinstance(obs, torch.Tensor) else next(iter(obs.values())))
