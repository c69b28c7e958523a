"""The learner's part of self-play: it takes results into the payoff table, admits opponents, and sets their odds."""

from collections.abc import Callable, Mapping
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...processes import Telemetry
from ..config import SelfPlayConfig
from .opponents import name_of
from .payoff import FILE, Payoff
from .pool import Pool


@dataclass
class League:
    """The opponents of one policy, as its learner sees them."""

    config: SelfPlayConfig
    pool: Pool
    results: Telemetry  # one lane for each actor, which reports each game there
    run_dir: Path  # of payoff.json
    report: Callable[[str, float], None]
    state: InitVar[Mapping[str, Any]]  # of a checkpoint; empty without one

    def __post_init__(self, state: Mapping[str, Any]) -> None:
        self._payoff = Payoff(self.config.window)
        self._games_before = 0  # the last admission
        self._step = 0
        if state:
            self._payoff.load_state_dict(state["payoff"])
            self._games_before = int(state["games_before"])
            if state["results"] == self.results.handle.nonce:  # a predecessor in this run died: its results come again
                self.results.read_from(state["positions"])

    def publish(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """Takes in the results, perhaps admits the present policy, and returns what is published beside the numbers."""
        for metric in self.results.tail():
            self._payoff.record(int(metric.agent), int(metric.value))
        self._step = int(numbers["step"])
        if self._admits(int(numbers["updates"])):
            self.pool.admit(dict(numbers))
            self._games_before = self._payoff.games
        opponents, odds = odds_of(self.config, self.pool.held, self._payoff.rate)
        return {"opponents": opponents, "odds": odds}

    def _admits(self, updates: int) -> bool:
        """Whether the policy joins the pool now; the first one always does."""
        config, rate = self.config, self._payoff.win_rate
        if not self.pool.held:
            return True
        if config.admit_updates is not None and updates - self.pool.updates >= config.admit_updates:
            return True
        wins = config.admit_win_rate is not None and rate is not None and rate >= config.admit_win_rate
        return wins and self._payoff.games - self._games_before >= config.window

    def report_rates(self) -> None:
        """Reports the win rates and the pool's size, and notes them in the table's history."""
        payoff = self._payoff
        payoff.note(self._step, self._opponents)
        self.report("pool_size", float(len(self.pool.held)))
        self.report("games", float(payoff.games))
        if payoff.win_rate is not None:
            self.report("win_rate", payoff.win_rate)
        for number in self._opponents:
            self.report(f"win_rate/{name_of(number, self.config.names)}", payoff.rate(number))

    def write(self) -> None:
        """Writes payoff.json: what the last checkpoint has, for readers."""
        self._payoff.write(self.run_dir / FILE, self.config.names)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        self._payoff.note(self._step, self._opponents)
        return {
            "payoff": self._payoff.state_dict(),
            "games_before": self._games_before,
            "results": self.results.handle.nonce,
            "positions": list(self.results.positions),
        }

    @property
    def _opponents(self) -> list[int]:
        """All but the latest policy."""
        return [*range(-1, -len(self.config.anchors) - 1, -1), *self.pool.held]


def odds_of(
    config: SelfPlayConfig, held: range, rate: Callable[[int], float]
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The opponents' numbers and their odds, whose sum is 1; [1 + anchors + config.pool].

    `held` are the pool's opponents, oldest first, and `rate` returns the learning policy's win rate against one.
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
    weights: NDArray[Any] = np.ones(len(rates))
    if config.draw == "pfsp":
        weights = (1.0 - rates) ** config.power
    elif config.draw == "recent":
        weights = np.arange(len(rates), 0, -1) ** -config.power
    odds: NDArray[np.float64] = weights / weights.sum()
    return odds
