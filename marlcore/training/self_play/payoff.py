"""The payoff table: the learning policy's results against each opponent, as a file and as a picture."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..record import canvas, read_json, say_that_none_ended, write_json
from .opponents import name_of

FILE = "payoff.json"
_MOST_ROWS = 400  # of the history; then every second one is dropped


class Payoff:
    """Wins, draws and losses against each opponent: over all games, and over the last `window` of them."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._totals: dict[int, list[int]] = {}  # wins, draws, losses
        self._last: dict[int, deque[int]] = {}
        self._newest: deque[int] = deque(maxlen=window)  # of all opponents
        self._history: list[tuple[int, dict[int, float]]] = []

    @property
    def games(self) -> int:
        """All games so far."""
        return sum(sum(counts) for counts in self._totals.values())

    def record(self, opponent: int, result: int) -> None:
        """Takes the result of a game: 1 won, 0 drawn, -1 lost."""
        self._totals.setdefault(opponent, [0, 0, 0])[1 - result] += 1
        self._last.setdefault(opponent, deque(maxlen=self._window)).append(result)
        self._newest.append(result)

    def rate(self, opponent: int) -> float:
        """The win rate against an opponent, in which two imagined games, won and lost, keep it from 0 and 1."""
        last = self._last.get(opponent, ())
        return (_score(last) + 1.0) / (len(last) + 2.0)

    @property
    def win_rate(self) -> float | None:
        """Over the last games against all opponents; None before the first."""
        return _score(self._newest) / len(self._newest) if self._newest else None

    def note(self, step: int, opponents: Iterable[int]) -> None:
        """Adds a row to the history: the win rates against these opponents now; forgets the last games of others."""
        rates = {number: self.rate(number) for number in opponents if number in self._last}
        self._last = {number: self._last[number] for number in rates}
        if rates:
            if self._history and self._history[-1][0] == step:
                self._history.pop()
            self._history.append((step, rates))
        if len(self._history) > _MOST_ROWS:
            self._history = self._history[-1::-2][::-1]

    def state_dict(self) -> dict[str, Any]:
        """The state as plain values."""
        return {
            "totals": {number: list(counts) for number, counts in self._totals.items()},
            "last": {number: list(results) for number, results in self._last.items()},
            "newest": list(self._newest),
            "history": [(step, dict(rates)) for step, rates in self._history],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the state returned by `state_dict`."""
        self._totals = {number: list(counts) for number, counts in state["totals"].items()}
        self._last = {number: deque(results, self._window) for number, results in state["last"].items()}
        self._newest = deque(state["newest"], self._window)
        self._history = [(step, dict(rates)) for step, rates in state["history"]]

    def write(self, path: Path, anchors: Sequence[str]) -> None:
        """Writes the table to a file, atomically."""
        opponents = {
            name_of(number, anchors): {
                "games": sum(counts),
                **dict(zip(("wins", "draws", "losses"), counts, strict=True)),
                "win_rate": _score(self._last[number]) / len(self._last[number]) if self._last.get(number) else None,
            }
            for number, counts in sorted(self._totals.items())
        }
        history = [
            {"step": step, "win_rates": {name_of(number, anchors): rate for number, rate in rates.items()}}
            for step, rates in self._history
        ]
        write_json(path, {"opponents": opponents, "history": history}, indent=1)


def _score(results: Iterable[int]) -> float:
    """Points: 1 for a win, one half for a draw."""
    return sum((result + 1) / 2 for result in results)


def draw_payoff(table: Path, path: Path, title: str) -> None:
    """Plots the table in payoff.json as a heat map: a row for each opponent, a column for each noted step."""
    payoff = read_json(table)
    history, games = payoff["history"], payoff["opponents"]
    names = list(dict.fromkeys(name for row in history for name in row["win_rates"]))
    with canvas(path, title, max(3.0, 1.5 + 0.3 * len(names))) as (figure, axes):
        if not names:
            say_that_none_ended(axes)
            return
        rates = np.array([[row["win_rates"].get(name, np.nan) for row in history] for name in names])
        steps = np.array([row["step"] for row in history], np.float64)
        edges = np.append(min(0.0, steps[0] - 1), np.maximum.accumulate(steps))  # a column ends at its own step
        mesh = axes.pcolormesh(edges, np.arange(len(names) + 1), rates, vmin=0, vmax=1, cmap="RdYlGn")
        axes.set_yticks(np.arange(len(names)) + 0.5, [f"{name} ({games[name]['games']:,})" for name in names])
        axes.set_xlabel("environment steps", fontsize=12)
        axes.set_ylabel("opponent (games)", fontsize=12)
        figure.colorbar(mesh, ax=axes, label="win rate over the last games")
