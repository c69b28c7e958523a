"""The running mean and standard deviation of value targets, in whose units a critic predicts.

Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games" (arXiv:2103.01955, section 3).
"""

from __future__ import annotations

import torch

DECAY = 0.99  # of what earlier batches count for
LEAST = 1e-2  # standard deviation, so that equal targets stay finite


class ValueNormalizer:
    """Exponential averages of targets and of their squares, debiased as Adam's (Kingma & Ba 2015, arXiv:1412.6980).

    Before the first batch, the mean is 0 and the standard deviation 1.
    """

    def __init__(self, device: torch.device) -> None:
        self._averages = torch.zeros(3, dtype=torch.float64, device=device)  # of 1, the targets and their squares
        self._mean, self._deviation = 0.0, 1.0

    def update(self, target: torch.Tensor) -> None:
        """Takes a batch's targets, float [B], into the statistics."""
        target = target.double()
        moments = torch.stack([torch.ones_like(target[0]), target.mean(), target.square().mean()])
        self._averages.lerp_(moments, 1 - DECAY)
        self._derive()

    def _derive(self) -> None:
        weight, first, second = self._averages.tolist()
        if weight:
            self._mean = first / weight
            self._deviation = max(second / weight - self._mean**2, LEAST**2) ** 0.5

    def normalized(self, value: torch.Tensor) -> torch.Tensor:
        """Values in units of the rewards, in those of the critic."""
        return (value - self._mean) / self._deviation

    def denormalized(self, value: torch.Tensor) -> torch.Tensor:
        """The critic's predictions, in units of the rewards."""
        return self._mean + self._deviation * value

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The averages; a live tensor."""
        return {"averages": self._averages}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restores a state of `state_dict`."""
        self._averages.copy_(state["averages"])
        self._derive()
