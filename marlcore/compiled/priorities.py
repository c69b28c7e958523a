"""First priorities of transitions, which actors compute from the values by which they act.

Horgan et al. 2018, "Distributed prioritized experience replay" (arXiv:1803.00933), section 3.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def step_error(
    scale: float, before: Mapping[str, NDArray[Any]], reward: NDArray[Any], discount: float,
    after: Mapping[str, NDArray[Any]],
) -> NDArray[Any]:  # fmt: skip
    """Returns the absolute errors [k] of one step, in units of `scale` times the reward; see `first_priority`."""
    error: NDArray[Any] = np.abs(scale * reward + discount * after["best"] - before["taken"])
    return error


def quantile_loss(error: NDArray[Any], quantiles: int, kappa: float) -> NDArray[Any]:
    """Returns IQN's losses for these errors, as if all its quantiles were their mean.

    Fractions drawn from [0, 1] weigh the error by one half on average.
    """
    quadratic = np.minimum(error, kappa)
    loss: NDArray[Any] = 0.5 * quantiles / kappa * quadratic * (error - 0.5 * quadratic)
    return loss
