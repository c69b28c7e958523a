"""The odds with which a policy meets its opponents."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..config import DRAWS, MAIN, MAIN_EXPLOITER, SelfPlayConfig
from ..references import resolve


class Standings(NamedTuple):
    """A policy's records against k opponents: arrays [k], oldest opponent first."""

    rates: NDArray[np.float64]  # the policy's win rates
    games: NDArray[np.int64]
    evenness: NDArray[np.float64]  # how even a game would be by the ratings, from 0 to 1


def odds_of(
    config: SelfPlayConfig,
    candidates: Sequence[int],
    against: Callable[[Sequence[int]], Standings],
    counts: Mapping[str, int],
    begun: bool = True,
    role: str = MAIN,
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Returns numbers and odds, each [config.opponents]: of the latest policy, the anchors, and the candidates.

    Only main policies play against themselves. Before self-play has begun, only anchors have odds above 0: their
    shares, or equal odds if all shares are 0.
    """
    shares = config.shares_at(counts)
    if role != MAIN:
        shares[0] = 0.0
    numbers, odds = np.zeros(config.opponents, np.int64), np.zeros(config.opponents)
    numbers[: len(shares)] = -np.arange(len(shares))
    others = 1.0 - float(shares.sum())
    if not begun:
        shares[0] = others = 0.0
        shares[1:] = shares[1:] if shares.any() else 1.0
    odds[: len(shares)] = shares
    if candidates and others > 1e-9:
        place = slice(len(shares), len(shares) + len(candidates))
        numbers[place] = candidates
        alike = np.full(len(candidates), 1.0 / len(candidates))
        odds[place] = others * (alike if role == MAIN_EXPLOITER else pool_odds(config, against(candidates)))
    if not odds.any():  # the pool has all the odds, but is empty
        odds[0] = 1.0
    return numbers, odds / odds.sum()


def pool_odds(config: SelfPlayConfig, standings: Standings) -> NDArray[np.float64]:
    """Returns the odds [k] among k opponents of the pools. Raises ValueError if a user's function gives wrong odds."""
    rates = standings.rates
    weights: NDArray[Any] = np.ones(len(rates))
    if config.draw == "pfsp":
        losses = 1.0 - rates
        weights = (losses / losses.max()) ** config.power  # the largest is 1, so that no power makes all weights 0
    elif config.draw == "recent":
        weights = np.arange(len(rates), 0, -1.0) ** -config.power  # NumPy refuses negative powers of ints
    elif config.draw == "variance":
        weights = rates * (1.0 - rates)
    elif config.draw == "rating":
        weights = standings.evenness if standings.evenness.any() else weights
    elif config.draw not in DRAWS:
        weights = _by_function(config.draw, standings)
    odds: NDArray[np.float64] = weights / weights.sum()
    return odds


def _by_function(reference: str, standings: Standings) -> NDArray[np.float64]:
    label = "self_play.draw"
    draw = resolve(label, reference)
    if not callable(draw):
        raise TypeError(f"{label}: expected a function of win rates and games, got {brief(draw)}")
    drawn = draw(standings.rates.copy(), standings.games.copy())
    weights = np.asarray(drawn, np.float64)
    if weights.shape != standings.rates.shape or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        expected = f"a function that returns {len(standings.rates)} odds of at least 0, not all 0"
        raise ValueError(f"{label}: expected {expected}, got {brief(drawn)}")
    return weights
