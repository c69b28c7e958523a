"""Epsilon-greedy actions: greedy or random ones, among those that a mask allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..interfaces import Action
from .first_priority import NAME
from .qnetwork import QNetwork, best

__all__ = ["epsilon_greedy"]


def epsilon_greedy(
    network: QNetwork,
    obs: Any,
    explore: Mapping[str, Any] | None,
    mask: torch.Tensor | None,
    generator: np.random.Generator,
    values: bool = False,
) -> Action:
    """Each row's greedy action, or with probability `explore["epsilon"]` an allowed one, drawn uniformly.

    The arguments are those of `Algorithm.act`. The draws from the generator depend neither on epsilon nor on the mask;
    the network runs only if some row is greedy, or if `values` asks for those of first_priority.py.
    """
    rows = len(next(iter(obs.values()))) if isinstance(obs, dict) else len(obs)
    with torch.inference_mode():
        allowed = None if mask is None else network.actions.allowed(mask)
        explores, chosen = _drawn(rows, network.actions.count, explore, allowed, generator)
        if explores.all() and not values:
            return Action(network.actions.decode(chosen))
        found = network(obs)
        greedy = best(found, allowed).cpu().numpy()
        chosen = np.where(explores, chosen, greedy)
        if not values:
            return Action(network.actions.decode(chosen))
        every, row = found.cpu().numpy(), np.arange(rows)
        unknown = {NAME: np.full(rows, np.nan, np.float32)}
        of_row = {"taken": every[row, chosen], "best": every[row, greedy]}
        return Action(network.actions.decode(chosen), unknown, values=of_row)


def _drawn(
    rows: int,
    count: int,
    explore: Mapping[str, Any] | None,
    allowed: torch.Tensor | None,
    generator: np.random.Generator,
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which rows explore, and each row's random action; without `explore`, no draws."""
    if explore is None:
        return np.zeros(rows, bool), np.zeros(rows, np.int64)
    explores = generator.random(rows) < explore["epsilon"]
    return explores, _uniform(generator.random(rows), count, allowed)


def _uniform(place: NDArray[np.float64], count: int, allowed: torch.Tensor | None) -> NDArray[np.int64]:
    """Actions [k]: of a row's n allowed actions the one numbered floor(place * n), for `place` [k] in [0, 1)."""
    if allowed is None:
        return (place * count).astype(np.int64)
    passed = allowed.cpu().numpy().cumsum(1)
    rank = (place * passed[:, -1]).astype(np.int64)
    found: NDArray[np.int64] = (passed > rank[:, None]).argmax(1)
    return found
