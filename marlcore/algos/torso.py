"""The first layers of a network, for any observation."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..spaces import Spaces
from .dense import Activation, Dense
from .encoders import encoder_of

__all__ = ["Torso"]


class Torso(nn.Module):
    """Observations, as `Algorithm.make_model` says, to features [B, size].

    Each part of the observation has its encoder (see encoders.py); fully connected layers of the sizes `hidden` follow
    on what these return, one after another in the order of `Spaces.parts`. A mask in the observation is no input, nor
    are the parts that `without` names.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: tuple[int, ...],
        activation: Activation = torch.relu_,
        without: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        parts = [part for part in spaces.parts if part.name not in without]
        self.names = [part.name for part in parts] if isinstance(spaces.obs, dict) else None
        encoders = [encoder_of(part.space, spaces.stack) for part in parts]
        self.encoders = nn.ModuleList(encoders)
        self.dense = Dense(sum(encoder.size for encoder in encoders), hidden, activation)
        self.size = self.dense.size
        self._parts = (encoders, self.dense)

    def forward(self, obs: Any) -> torch.Tensor:
        return self._parts[1].forward(self.encoded(obs))

    def encoded(self, obs: Any) -> torch.Tensor:
        """What the encoders return, [B, inputs of the first layer]."""
        encoders = self._parts[0]
        if self.names is None:
            return encoders[0].forward(obs)
        pairs = zip(encoders, self.names, strict=True)
        return torch.cat([encoder.forward(obs[name]) for encoder, name in pairs], 1)
