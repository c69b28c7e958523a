"""First priorities that actors compute, so that new transitions need not all count as the most surprising ones.

Horgan et al. 2018, "Distributed prioritized experience replay" (arXiv:1803.00933, section 3): here the absolute error
of one step, whose values the actor has when it chooses its actions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interfaces import PRIORITY, ReplaySource
from ..spec import Field, TransitionSpec

__all__ = ["absolute_error", "source_with_priority", "with_priority"]


def with_priority(spec: TransitionSpec) -> TransitionSpec:
    """The spec with a field for the first priority."""
    return dataclasses.replace(spec, extras={**spec.extras, PRIORITY: Field((), "float32")})


def source_with_priority(source: ReplaySource) -> ReplaySource:
    """The source, whose prioritized sampler begins with the actors' priorities."""
    if source.prioritized is None:
        return source
    return dataclasses.replace(source, prioritized=dataclasses.replace(source.prioritized, initial=PRIORITY))


def absolute_error(
    before: Mapping[str, NDArray[Any]], reward: NDArray[Any], discount: float, after: Mapping[str, NDArray[Any]]
) -> NDArray[np.float32]:
    """See `Algorithm.first_priority`; NaN where a value is unknown."""
    error: NDArray[np.float32] = np.abs(reward + discount * after["best"] - before["taken"]).astype(np.float32)
    return error
