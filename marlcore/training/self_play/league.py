"""The learner's part of self-play: it takes results into the payoff table, admits opponents, and sets their odds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...processes import Telemetry
from ..config import SelfPlayConfig
from .odds import name_of, odds_of
from .payoff import FILE, Payoff
from .pool import Pool


class League:
    """The opponents of one policy, as its learner sees them.

    Args:
        config: the settings.
        pool: of frozen opponents.
        results: one lane for each actor, which reports each game there.
        run_dir: of payoff.json.
        report: called with (name, value).
        state: of a checkpoint; empty without one.
    """

    def __init__(
        self,
        config: SelfPlayConfig,
        pool: Pool,
        results: Telemetry,
        run_dir: Path,
        report: Callable[[str, float], None],
        state: Mapping[str, Any],
    ) -> None:
        self._config = config
        self._pool = pool
        self._results = results
        self._path = run_dir / FILE
        self._report = report
        self._payoff = Payoff(config.window)
        self._games_before = 0  # the last admission
        self._step = 0
        if state:
            self._payoff.load_state_dict(state["payoff"])
            self._games_before = int(state["games_before"])
            if state["results"] == results.handle.nonce:  # a predecessor in this run died: its results are read again
                results.read_from(state["positions"])

    def publish(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """Takes in the results, perhaps admits the present policy, and returns what is published with its weights.

        Args:
            numbers: of the policy: its updates, the step, and those of exploration.
        """
        for metric in self._results.tail():
            self._payoff.record(int(metric.agent), int(metric.value))
        self._step = int(numbers["step"])
        if self._admits(int(numbers["updates"])):
            self._admit(numbers)
        opponents, odds = odds_of(self._config, self._pool.held, self._payoff.rate)
        return {"opponents": opponents, "odds": odds}

    def _admits(self, updates: int) -> bool:
        """Whether the policy joins the pool now; the first one always does."""
        config, rate = self._config, self._payoff.win_rate
        if not self._pool.held:
            return True
        if config.admit_updates is not None and updates - self._pool.updates >= config.admit_updates:
            return True
        wins = config.admit_win_rate is not None and rate is not None and rate >= config.admit_win_rate
        return wins and self._payoff.games - self._games_before >= config.window

    def _admit(self, numbers: Mapping[str, float]) -> None:
        self._pool.admit(dict(numbers))
        self._games_before = self._payoff.games

    def report(self) -> None:
        """Reports the win rates and the pool's size, and notes them in the table's history."""
        payoff = self._payoff
        payoff.note(self._step, self._opponents)
        self._report("pool_size", float(len(self._pool.held)))
        self._report("games", float(payoff.games))
        if payoff.win_rate is not None:
            self._report("win_rate", payoff.win_rate)
        for number in self._opponents:
            self._report(f"win_rate/{name_of(number, self._config.names)}", payoff.rate(number))

    def write(self) -> None:
        """Writes payoff.json: what the last checkpoint has, for readers."""
        self._payoff.write(self._path, self._config.names)

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint."""
        self._payoff.note(self._step, self._opponents)
        return {
            "payoff": self._payoff.state_dict(),
            "games_before": self._games_before,
            "results": self._results.handle.nonce,
            "positions": list(self._results.positions),
        }

    @property
    def _opponents(self) -> list[int]:
        """All but the latest policy."""
        return [*range(-1, -len(self._config.anchors) - 1, -1), *self._pool.held]
