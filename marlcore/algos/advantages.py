"""Advantages and value targets of a batch from a queue, by GAE or V-trace, and the units of a critic.

Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation" (arXiv:1506.02438);
Espeholt et al. 2018, "IMPALA: Scalable distributed deep-RL with importance weighted actor-learner architectures"
(arXiv:1802.01561).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ..kernels.policies import trace

DECAY = 0.99  # of what earlier batches count for in a ValueNormalizer
LEAST = 1e-2  # standard deviation, so that equal targets stay finite


class Steps(NamedTuple):
    """Rows of a batch, one after another: float32 [B], and `continues` bool [B]: the next row is the next transition.

    Reward and discount are of one step each, `value` is of the observation and `following` of the next one.
    """

    reward: torch.Tensor
    discount: torch.Tensor
    value: torch.Tensor
    following: torch.Tensor
    continues: torch.Tensor


def gae(steps: Steps, decay: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages [B] of GAE with lambda `decay`, from 0 to 1, and the targets [B]: the values plus these."""
    return vtrace(steps, torch.ones_like(steps.reward), decay, 1.0, 1.0)


def vtrace(
    steps: Steps, ratio: torch.Tensor, decay: float, rho_bar: float, c_bar: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The advantages [B] of V-trace's policy gradient, and its targets [B].

    With decay 1 an advantage is the paper's rho (r + gamma v' - V), v' the next row's target; ratios of 1 give GAE.

    Args:
        ratio: float32 [B], the probability of the action by today's policy, divided by that when it was taken.
        decay: lambda; the paper's is 1 (its remark 2 has others).
        rho_bar, c_bar: where ratios are clipped, of the row itself and of what it passes to earlier rows.
    """
    arrays = [values.cpu().numpy() for values in (*steps, ratio)]
    advantage, target = np.empty_like(arrays[0]), np.empty_like(arrays[0])
    trace(*arrays, float(decay), float(rho_bar), float(c_bar), advantage, target)
    device = steps.value.device
    return torch.from_numpy(advantage).to(device), torch.from_numpy(target).to(device)


def following_values(batch: Any, value: torch.Tensor, of_next: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The value of each next observation of a batch's rows, by the values [B, ...] of the observations.

    It is that of the next row; where the run of rows is cut, what `of_next` returns for the rows' numbers; else 0.
    """
    following = torch.cat([value[1:], torch.zeros_like(value[:1])])
    cut = (~batch.continues & (batch.discount > 0)).nonzero().squeeze(1)
    if len(cut):
        following[cut] = of_next(cut)
    return following


class ValueNormalizer:
    """The running mean and standard deviation of value targets, in whose units a critic predicts.

    They are those of exponential averages, debiased as Adam's (Kingma & Ba 2015, arXiv:1412.6980); before the first
    batch 0 and 1. Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games"
    (arXiv:2103.01955, section 3).
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
        return {"averages": self._averages}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._averages.copy_(state["averages"])
        self._derive()
