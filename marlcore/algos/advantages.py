"""Computes advantages and value targets, by GAE or V-trace, for batches from a queue; also normalizes values.

All arguments and results are NumPy arrays: advantages are computed row by row, which is fastest on a CPU.

Schulman et al. 2016, "High-dimensional continuous control using generalized advantage estimation" (arXiv:1506.02438);
Espeholt et al. 2018, "IMPALA: Scalable distributed deep-RL with importance weighted actor-learner architectures"
(arXiv:1802.01561).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..kernels import policies

Floats = NDArray[np.float32]

DECAY = 0.99  # weight of earlier batches in a ValueNormalizer
LEAST = 1e-2  # smallest standard deviation, for targets that are all equal


class Steps(NamedTuple):
    """Rewards, discounts and values of B consecutive rows of a batch, float32 [B].

    `value` holds the values of the rows' observations, `following` the values of their next observations. `continues`,
    bool [B], is True where the batch's next row is the row's next transition.
    """

    reward: Floats
    discount: Floats
    value: Floats
    following: Floats
    continues: NDArray[np.bool_]


def gae(steps: Steps, decay: float) -> tuple[Floats, Floats]:
    """Returns GAE's advantages and the value targets (advantages plus values), both [B]; `decay` is lambda, 0 to 1."""
    return vtrace(steps, np.ones_like(steps.reward), decay, 1.0, 1.0)


def vtrace(steps: Steps, ratio: Floats, decay: float, rho_bar: float, c_bar: float) -> tuple[Floats, Floats]:
    """Returns the advantages [B] for V-trace's policy gradient, and V-trace's value targets [B].

    With decay 1 an advantage is the paper's rho (r + gamma v' - V), where v' is the next row's target.
    With ratios of 1 these are GAE's advantages.

    Args:
        ratio: float32 [B], the action's probability under the present policy, divided by its probability when taken.
        decay: lambda, from 0 to 1; the paper uses 1, and allows other values in remark 2.
        rho_bar: upper bound of the ratio that weights a row's own error.
        c_bar: upper bound of the ratio that weights the errors of later rows.
    """
    advantage, target = np.empty_like(steps.reward), np.empty_like(steps.reward)
    policies.trace(*steps, ratio, float(decay), float(rho_bar), float(c_bar), advantage, target)
    return advantage, target


def following_values(batch: Any, value: Floats, of_next: Callable[[NDArray[np.int64]], Any]) -> Floats:
    """Returns the value of each row's next observation, given the values [B, ...] of the rows' observations.

    If the next row is the next transition, the result is that row's value; after a termination it is any number. For
    all other rows, `of_next` gets the rows' numbers, int64 [k], and returns the values [k, ...] of their next
    observations.
    """
    following = np.zeros_like(value)
    following[:-1] = value[1:]
    cut = (~batch.continues & (batch.discount > 0)).nonzero()[0]
    if len(cut):
        following[cut] = of_next(cut)
    return following


def standardized(values: Floats) -> Floats:
    """Subtracts the mean of values [B], and divides by their standard deviation; a single value stays unchanged."""
    if len(values) < 2:
        return values
    mean, variance = policies.moments(values)
    deviation = (variance * len(values) / (len(values) - 1)) ** 0.5
    return (values - np.float32(mean)) / np.float32(deviation + 1e-8)


class ValueNormalizer:
    """Keeps the running mean and standard deviation of value targets, which scale a critic's values.

    Both come from exponential averages, debiased as in Adam (Kingma & Ba 2015, arXiv:1412.6980); before the first batch
    they are 0 and 1. Yu et al. 2022, "The surprising effectiveness of PPO in cooperative multi-agent games"
    (arXiv:2103.01955, section 3).
    """

    def __init__(self) -> None:
        self._averages = np.zeros(3)  # of 1, the targets and their squares
        self._mean, self.deviation = 0.0, 1.0

    def update(self, target: Floats) -> None:
        """Adds a batch's targets, float [B], to the statistics."""
        mean, variance = policies.moments(target)
        self._averages += (1 - DECAY) * (np.array([1.0, mean, variance + mean**2]) - self._averages)
        self._derive()

    def _derive(self) -> None:
        weight, first, second = self._averages.tolist()
        self._mean = first / weight if weight else 0.0
        self.deviation = max(second / weight - self._mean**2, LEAST**2) ** 0.5 if weight else 1.0

    def normalized(self, value: Any) -> Any:
        """Converts values from units of the rewards to the critic's units."""
        return (value - self._mean) / self.deviation

    def denormalized(self, value: Any) -> Any:
        """Converts the critic's predictions to units of the rewards."""
        return self._mean + self.deviation * value

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"averages": torch.from_numpy(self._averages.copy())}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        self._averages[:] = state["averages"].numpy(force=True)
        self._derive()
