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
    """Returns absolute one-step TD errors [k], with rewards multiplied by `scale`; see `Algorithm.first_priority`."""
    error: NDArray[Any] = np.abs(scale * reward + discount * after["best"] - before["taken"])
    return error


def quantile_loss(error: NDArray[Any], quantiles: int, kappa: float) -> NDArray[Any]:
    """Returns IQN's loss for each error, as if all quantiles were equal to their mean.

    The factor 0.5 is an error's average weight: IQN weighs errors by fractions drawn uniformly from [0, 1].
    """
    quadratic = np.minimum(error, kappa)
    loss: NDArray[Any] = 0.5 * quantiles / kappa * quadratic * (error - 0.5 * quadratic)
    return loss
