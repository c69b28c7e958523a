"""The first layers of a network, for any observation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..spaces import Spaces
from .dense import Activation, Dense
from .encoders import encoder_of
from .network import Network, Operation, call_of, operations_of

__all__ = ["Torso"]


class Torso(Network):
    """Observations, as `Algorithm.make_model` says, to features [B, size].

    Each part of the observation has its encoder (see encoders.py); fully connected layers of the sizes `hidden` follow
    on what these return, one after another in the order of `Spaces.parts`. A mask in the observation is no input, nor
    are the parts that `without` names.
    """

    def __init__(
        self,
        spaces: Spaces,
        hidden: tuple[int, ...],
        activation: Activation = torch.relu,
        without: tuple[str, ...] = (),
    ) -> None:
        super().__init__()
        parts = [part for part in spaces.parts if part.name not in without]
        self.names = [part.name for part in parts] if isinstance(spaces.obs, dict) else None
        encoders = [encoder_of(part.space, spaces.stack) for part in parts]
        self.encoders = nn.ModuleList(encoders)
        self.dense = Dense(sum(encoder.size for encoder in encoders), hidden, activation)
        self.size = self.dense.size

    def forward(self, obs: Any) -> torch.Tensor:
        encoded = self.encoders[0](obs) if self.names is None else self._joined(self.encoders, obs)
        features: torch.Tensor = self.dense(encoded)
        return features

    def operations(self) -> list[Operation]:
        encoders = [call_of(encoder) for encoder in self.encoders]
        first = encoders[0] if self.names is None else lambda obs: self._joined(encoders, obs)
        return [first, *operations_of(self.dense)]

    def _joined(self, encoders: Iterable[Operation], obs: Any) -> torch.Tensor:
        assert self.names is not None
        return torch.cat([encoder(obs[name]) for encoder, name in zip(encoders, self.names, strict=True)], 1)
