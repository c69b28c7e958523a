"""Algorithms by name: hyperparameters that make a network, act with it and train it."""

from __future__ import annotations

from .dqn import DQN
from .iqn import IQN

__all__ = ["ALGORITHMS", "DQN", "IQN", "make"]

ALGORITHMS: dict[str, type[DQN] | type[IQN]] = {"dqn": DQN, "iqn": IQN}


def make(name: str) -> DQN | IQN:
    """The algorithm called `name`, with its default hyperparameters; ValueError if there is none."""
    if name not in ALGORITHMS:
        raise ValueError(f"algorithm: expected one of {', '.join(sorted(ALGORITHMS))}, got {name!r}")
    return ALGORITHMS[name]()
