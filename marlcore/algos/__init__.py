"""Algorithms by name; each is a set of hyperparameters that makes, runs and trains a network."""

from __future__ import annotations

from typing import Any

from ..interfaces import Algorithm
from ..references import reference_to, resolve
from .dqn import DQN
from .iqn import IQN

__all__ = ["ALGORITHMS", "DQN", "IQN", "find", "make", "name_of"]

ALGORITHMS: dict[str, type[Algorithm]] = {"dqn": DQN, "iqn": IQN}


def find(name: str) -> type[Algorithm]:
    """The class of an algorithm: "dqn", "iqn", or "module:Class" for your own.

    Raises: ValueError: no algorithm has this name, or the import fails.
    """
    if name.lower() in ALGORITHMS:
        return ALGORITHMS[name.lower()]
    if ":" not in name:
        raise ValueError(f"algorithm: expected one of {', '.join(sorted(ALGORITHMS))} or module:Class, got {name!r}")
    found = resolve("algorithm", name)
    if not isinstance(found, type):
        raise ValueError(f"algorithm: expected module:Class, got {name!r}, which is no class")
    return found


def make(name: str, /, **hyperparameters: Any) -> Algorithm:
    """The algorithm of that name (see `find`), with these hyperparameters and defaults for the rest."""
    return find(name)(**hyperparameters)


def name_of(algorithm: Algorithm) -> str:
    """The name that `find` takes for the algorithm's class, provided that the class can be imported."""
    kind = type(algorithm)
    known = ALGORITHMS.get(kind.__name__.lower()) is kind
    return kind.__name__ if known else str(reference_to(kind))
