"""Normalizes by the running means and deviations that a learner publishes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

LIMIT = 10.0  # bound of a normalized number, as in Andrychowicz et al. 2021 (arXiv:2006.05990, C64)
LEAST_VARIANCE = 1e-8  # added to each variance

Moments = dict[str, tuple[Any, Any]]  # by name: the mean, and the standard deviation


def moments_of(weights: Mapping[str, Any], module: str) -> Moments:
    """Reads the moments of the module named `module` from published weights; returns {} if there is no such module."""
    first = f"{module}.mean_"
    means = {name.removeprefix(first): np.array(mean) for name, mean in weights.items() if name.startswith(first)}
    variances = {name: np.asarray(weights[f"{module}.variance_{name}"]) for name in means}
    return {name: (mean, np.sqrt(variances[name] + LEAST_VARIANCE)) for name, mean in means.items()}


def of_observations(weights: Mapping[str, Any]) -> Moments:
    """Returns the moments of observations; {} before the first update, while observations are not normalized."""
    return moments_of(weights, "norm") if weights.get("norm.count", 0) else {}


def normalized(values: NDArray[Any], mean: Any, deviation: Any) -> Any:
    """Returns values [..., *shape] minus the mean, divided by the deviation, and clipped to [-LIMIT, LIMIT]."""
    scaled = (values - mean) / deviation
    return np.minimum(np.maximum(scaled, -LIMIT, out=scaled), LIMIT, out=scaled)
