"""Computes advantages and value targets, by GAE or V-trace, for batches from a queue; also normalizes values.

Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation" (arXiv:1506.02438);
Espeholt et al. 2018, "IMPALA: Scalable distributed deep-RL with importance weighted actor-learner architectures"
(arXiv:1802.01561).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..kernels.policies import trace

DECAY = 0.99  # weight of earlier batches in a ValueNormalizer
LEAST = 1e-2  # smallest standard deviation: equal targets have none


class Steps(NamedTuple):
    """Rewards, discounts and values of B consecutive rows of a batch, float32 [B].

    `value` holds the values of the rows' observations, `following` the values of their next observations. `continues`,
    bool [B], is True where the batch's next row is the row's next transition.
    """

    reward: torch.Tensor
    discount: torch.Tensor
    value: torch.Tensor
    following: torch.Tensor
    continues: torch.Tensor


def gae(steps: Steps, decay: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns GAE's advantages and the value targets (advantages plus values), both [B]; `decay` is lambda, 0 to 1."""
    return vtrace(steps, torch.ones_like(steps.reward), decay, 1.0, 1.0)


def vtrace(
    steps: Steps, ratio: torch.Tensor, decay: float, rho_bar: float, c_bar: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the advantages [B] for V-trace's policy gradient, and V-trace's value targets [B].

    With decay 1 an advantage is the paper's rho (r + gamma v' - V), where v' is the next row's target.
    With ratios of 1 these are GAE's advantages.

    Args:
        ratio: float32 [B], the action's probability under the present policy, divided by its probability when taken.
        decay: lambda, from 0 to 1; the paper uses 1, and allows other values in remark 2.
        rho_bar: upper bound of the ratio that weights a row's own error.
        c_bar: upper bound of the ratio that weights the errors of later rows.
    """
    arrays = [values.cpu().numpy() for values in (*steps, ratio)]
    advantage, target = np.empty_like(arrays[0]), np.empty_like(arrays[0])
    trace(*arrays, float(decay), float(rho_bar), float(c_bar), advantage, target)
    device = steps.value.device
    return torch.from_numpy(advantage).to(device), torch.from_numpy(target).to(device)


def following_values(batch: Any, value: torch.Tensor, of_next: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Returns the value of each row's next observation, given the values [B, ...] of the rows' observations.

    If the next row is the next transition, the result is that row's value; after a termination it is 0. For all other
    rows, `of_next` gets the rows' numbers, int64 [k], and returns the values [k, ...] of their next observations.
    """
    following = torch.cat([value[1:], torch.zeros_like(value[:1])])
    cut = (~batch.continues & (batch.discount > 0)).nonzero().squeeze(1)
    if len(cut):
        following[cut] = of_next(cut)
    return following


class ValueNormalizer:
    """Keeps the running mean and standard deviation of value targets, which scale a critic's values.

    Both come from exponential averages, debiased as in Adam (Kingma & Ba 2015, arXiv:1412.6980); before the first batch
    they are 0 and 1. Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games"
    (arXiv:2103.01955, section 3).
    """

    def __init__(self, device: torch.device) -> None:
        self._averages = torch.zeros(3, dtype=torch.float64, device=device)  # of 1, the targets and their squares
        self._mean, self._deviation = 0.0, 1.0

    def update(self, target: torch.Tensor) -> None:
        """Adds a batch's targets, float [B], to the statistics."""
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
        """Converts values from units of the rewards to those of the critic."""
        return (value - self._mean) / self._deviation

    def denormalized(self, value: torch.Tensor) -> torch.Tensor:
        """Converts the critic's predictions to units of the rewards."""
        return self._mean + self._deviation * value

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"averages": self._averages}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._averages.copy_(state["averages"])
        self._derive()
