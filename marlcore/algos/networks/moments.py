"""Running means and variances of arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ...compiled import LEAST_VARIANCE
from ...observations import by_name


class RunningMoments(nn.Module):
    """Keeps the running mean and variance of named arrays.

    All state is float64: `count` and `batches` are the numbers of rows and batches; each array has `mean_<name>` and
    `variance_<name>`, [*shape].
    """

    count: torch.Tensor
    batches: torch.Tensor

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        super().__init__()
        for name in ("count", "batches"):
            self.register_buffer(name, torch.zeros((), dtype=torch.float64))
        self._parts = [*shapes]
        for name, shape in shapes.items():
            self.register_buffer(f"mean_{name}", torch.zeros(shape, dtype=torch.float64))
            self.register_buffer(f"variance_{name}", torch.ones(shape, dtype=torch.float64))

    @torch.no_grad()
    def update(self, rows_of_parts: Any) -> None:
        """Adds a batch's arrays [..., *shape] to the moments, in place (Chan, Golub and LeVeque 1983, eq. 2.1)."""
        count, total = float(self.count), 0.0
        values = by_name(rows_of_parts)
        for name in self._parts:
            mean, variance = getattr(self, f"mean_{name}"), getattr(self, f"variance_{name}")
            rows = values[name].reshape(-1, *mean.shape).double()
            more = len(rows)
            if more == 0:
                return  # of no rows there is no mean
            total = count + more
            delta = rows.mean(0) - mean
            spread = variance * count + rows.var(0, correction=0) * more + delta**2 * (count * more / total)
            mean += delta * (more / total)
            variance.copy_(spread / total)
        self.count.fill_(total)
        self.batches += 1

    def deviation(self, name: str) -> torch.Tensor:
        """Returns the standard deviation [*shape], float64, always above 0."""
        variance: torch.Tensor = getattr(self, f"variance_{name}")
        return torch.sqrt(variance + LEAST_VARIANCE)

    def normalized_part(self, name: str, values: torch.Tensor, limit: float) -> torch.Tensor:
        """Returns values [..., *shape] minus the mean, divided by the deviation, float32 within [-limit, limit]."""
        mean: torch.Tensor = getattr(self, f"mean_{name}")
        return ((values - mean) / self.deviation(name)).clamp(-limit, limit).float()
