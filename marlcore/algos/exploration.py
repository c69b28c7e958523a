"""Epsilon-greedy actions: greedy or random ones, among those that a mask allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..interfaces import PRIORITY, Action
from .qnetwork import QNetwork, best

__all__ = ["epsilon_greedy", "explored"]


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
    count = network.actions.count
    with torch.inference_mode():
        allowed = None if mask is None else network.actions.allowed(mask)
        drawn = None if explore is None else _drawn(rows, count, explore["epsilon"], allowed, generator)
        if drawn is not None and drawn[0].all() and not values:
            return Action(network.actions.decode(drawn[1]))
        found = network(obs)
        greedy: NDArray[np.int64] = best(found, allowed).cpu().numpy()
        chosen = greedy if drawn is None else np.where(*drawn, greedy)
        if not values:
            return Action(network.actions.decode(chosen))
        every, each = found.cpu().numpy(), np.arange(rows)
        unknown = {PRIORITY: np.full(rows, np.nan, np.float32)}
        of_rows = {"taken": every[each, chosen], "best": every[each, greedy]}
        return Action(network.actions.decode(chosen), unknown, values=of_rows)


def explored(
    values: torch.Tensor,
    allowed: torch.Tensor | None,
    explore: Mapping[str, Any] | None,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """Epsilon-greedy actions [k], of values [k, actions] that are known already; `allowed` bool [k, actions].

    The draws from the generator are those of `epsilon_greedy`.
    """
    greedy: NDArray[np.int64] = best(values, allowed).cpu().numpy()
    if explore is None:
        return greedy
    rows, count = values.shape
    return np.where(*_drawn(rows, count, explore["epsilon"], allowed, generator), greedy)


def _drawn(
    rows: int, actions: int, epsilon: Any, allowed: torch.Tensor | None, generator: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which rows explore, and a random action of each row."""
    explores = generator.random(rows) < epsilon
    return explores, _uniform(generator.random(rows), actions, allowed)


def _uniform(place: NDArray[np.float64], count: int, allowed: torch.Tensor | None) -> NDArray[np.int64]:
    """Actions [k]: of a row's n allowed actions the one numbered floor(place * n), for `place` [k] in [0, 1)."""
    if allowed is None:
        return (place * count).astype(np.int64)
    passed = allowed.cpu().numpy().cumsum(1)
    rank = (place * passed[:, -1]).astype(np.int64)
    found: NDArray[np.int64] = (passed > rank[:, None]).argmax(1)
    return found
