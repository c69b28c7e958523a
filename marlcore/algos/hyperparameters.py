"""The hyperparameters that algorithms with target networks have in common, and their checks."""

from __future__ import annotations

import math
from typing import Protocol

from ..checks import check_whole

__all__ = [
    "Hyperparameters",
    "TargetHyperparameters",
    "check_common",
    "check_hyperparameters",
    "check_not_negative",
    "check_positive",
    "check_sizes",
]


class Hyperparameters(Protocol):
    """The hyperparameters that the common parts read; the algorithms' dataclasses document them."""

    @property
    def learning_rate(self) -> float: ...
    @property
    def hidden(self) -> tuple[int, ...]: ...
    @property
    def tau(self) -> float: ...
    @property
    def max_grad_norm(self) -> float: ...
    @property
    def reward_scale(self) -> float: ...


class TargetHyperparameters(Hyperparameters, Protocol):
    """Those of a target network that may also be copied at intervals."""

    @property
    def target_update_freq(self) -> int: ...


def check_common(given: Hyperparameters) -> None:
    """Raise ValueError, naming the field, unless every hyperparameter of `Hyperparameters` is in its range."""
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
    check_sizes(owner, given.hidden)


def check_sizes(owner: str, hidden: tuple[int, ...]) -> None:
    """Raise ValueError unless `hidden` is a tuple of at least one size."""
    if not isinstance(hidden, tuple) or not hidden:
        raise ValueError(f"{owner} hidden: expected a tuple of at least one size, got {hidden!r}")
    for size in hidden:
        check_whole(f"{owner} hidden", size)


def check_hyperparameters(given: TargetHyperparameters) -> None:
    """Raise ValueError, naming the field, unless every hyperparameter of `TargetHyperparameters` is in its range."""
    check_common(given)
    check_whole(f"{type(given).__name__} target_update_freq", given.target_update_freq, 0)


def check_positive(owner: str, **values: float) -> None:
    """Raise ValueError, naming the field, unless every value is a finite number above 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < math.inf:
            raise ValueError(f"{owner} {name}: expected a finite number above 0, got {value!r}")


def check_not_negative(owner: str, **values: float) -> None:
    """Raise ValueError, naming the field, unless every value is a finite number of at least 0."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise ValueError(f"{owner} {name}: expected a finite number of at least 0, got {value!r}")
