"""Normalization of observations: a policy's running mean and variance, which travel with its weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ...spaces import Spaces

LIMIT = 10.0  # of a normalized number, as in Andrychowicz et al. 2021 (arXiv:2006.05990, C64)


class Normalizer(nn.Module):
    """Subtracts the mean of each number of the float parts of an observation, and divides by its standard deviation.

    Its state is float64: `count`, and for each such part mean and variance [*shape]. Until the first update, it leaves
    observations as they are.
    """

    count: torch.Tensor

    def __init__(self, spaces: Spaces) -> None:
        super().__init__()
        self._alone = not isinstance(spaces.obs, dict)
        self._parts = [part.name for part in spaces.parts if part.field.numpy.kind == "f"]
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        for part in spaces.parts:
            if part.name in self._parts:
                self.register_buffer(f"mean_{part.name}", torch.zeros(part.field.shape, dtype=torch.float64))
                self.register_buffer(f"variance_{part.name}", torch.ones(part.field.shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, obs: Any) -> None:
        """Takes the observations [..., *shape] of a batch into the statistics (Chan, Golub and LeVeque 1983, eq. 2.1).

        Values change in place, since the tensors may be views of a published row.
        """
        before, total = float(self.count), 0.0
        for name in self._parts:
            mean, variance = getattr(self, f"mean_{name}"), getattr(self, f"variance_{name}")
            rows = (obs if self._alone else obs[name]).reshape(-1, *mean.shape).double()
            more = len(rows)
            total = before + more
            delta = rows.mean(0) - mean
            spread = variance * before + rows.var(0, correction=0) * more + delta**2 * (before * more / total)
            mean += delta * (more / total)
            variance.copy_(spread / total)
        self.count.fill_(total)

    def forward(self, obs: Any) -> Any:
        """The observations with their float parts normalized, float32, within [-10, 10]."""
        if not self._parts or not float(self.count):
            return obs
        if self._alone:
            return self._normalized(self._parts[0], obs)
        return {name: self._normalized(name, one) if name in self._parts else one for name, one in obs.items()}

    def _normalized(self, name: str, values: torch.Tensor) -> torch.Tensor:
        mean, variance = getattr(self, f"mean_{name}"), getattr(self, f"variance_{name}")
        normalized: torch.Tensor = ((values - mean) / torch.sqrt(variance + 1e-8)).clamp(-LIMIT, LIMIT)
        return normalized.float()
