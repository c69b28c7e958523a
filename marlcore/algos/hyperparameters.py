"""The hyperparameters that value-based algorithms have in common, and their checks."""

from __future__ import annotations

import math
from typing import Protocol

from ..checks import check_whole

__all__ = ["Hyperparameters", "check_hyperparameters", "check_positive"]


class Hyperparameters(Protocol):
    """The hyperparameters that the common parts read; the algorithms' dataclasses document them."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def tau(self) -> float: ...
    @property
    def target_update_freq(self) -> int: ...
    @property
    def max_grad_norm(self) -> float: ...
    @property
    def reward_scale(self) -> float: ...


def check_hyperparameters(given: Hyperparameters) -> None:
    """Raise ValueError, naming the field, unless every common hyperparameter is in its range."""
    owner = type(given).__name__
    check_positive(
        owner,
        learning_rate=given.learning_rate,
        tau=given.tau,
        max_grad_norm=given.max_grad_norm,
        reward_scale=given.reward_scale,
    )
    if given.tau > 1:
        raise ValueError(f"{owner} tau: expected a number in (0, 1], got {given.tau!r}")
    check_whole(f"{owner} target_update_freq", given.target_update_freq, 0)
    if not isinstance(given.hidden, tuple) or not given.hidden:
        raise ValueError(f"{owner} hidden: expected a tuple of at least one size, got {given.hidden!r}")
    for size in given.hidden:
        check_whole(f"{owner} hidden", size)


def check_positive(owner: str, **values: float) -> None:
    """Raise ValueError, naming the field, unless every value is a finite number above 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{owner} {name}: expected a finite number above 0, got {value!r}")
