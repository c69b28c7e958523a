"""How likely each opponent is: shares of the latest policy and of anchors, and three ways to draw from the pool.

Opponents have numbers, which name them to all processes: 0 is the latest policy, -1, -2, ... are the anchors in their
order, and 1, 2, ... the frozen copies in the order of their admission.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import SelfPlayConfig

LATEST = 0


def name_of(number: int, anchors: Sequence[str]) -> str:
    """An opponent's name: "pool:latest", "pool:3", or its anchor's."""
    if number < 0:
        return anchors[-number - 1]
    return f"pool:{number}" if number else "pool:latest"


def odds_of(
    config: SelfPlayConfig, held: range, rate: Callable[[int], float]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The opponents' numbers and their odds, whose sum is 1; [1 + anchors + config.pool].

    Args:
        held: the pool's opponents, oldest first.
        rate: the learning policy's win rate against one.
    """
    shares = [config.latest, *config.anchors.values()]
    numbers, odds = np.zeros(len(shares) + config.pool, np.int64), np.zeros(len(shares) + config.pool)
    numbers[: len(shares)] = -np.arange(len(shares))
    odds[: len(shares)] = shares
    if held and config.from_pool > 0:
        pool = slice(len(shares), len(shares) + len(held))
        numbers[pool] = held
        odds[pool] = config.from_pool * pool_odds(config, np.array([rate(number) for number in held]))
    if not odds.any():  # everything from a pool that is empty
        odds[0] = 1.0
    return numbers, odds / odds.sum()


def pool_odds(config: SelfPlayConfig, rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """The odds of the pool's opponents among themselves, oldest first, given the win rates against them."""
    weights: NDArray[Any]
    if config.draw == "pfsp":
        weights = (1.0 - rates) ** config.power
    elif config.draw == "recent":
        weights = np.arange(len(rates), 0, -1) ** -config.power
    else:
        weights = np.ones(len(rates))
    odds: NDArray[np.float64] = weights / weights.sum()
    return odds
