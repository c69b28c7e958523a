"""The payoff table: the learning policy's results against each opponent."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..record import write_json
from .odds import name_of

FILE = "payoff.json"
LOSS, DRAW, WIN = -1, 0, 1
_MOST_ROWS = 400  # of the history; then every second one is dropped


class Payoff:
    """Wins, draws and losses against each opponent: over all games, and over the last `window` of them.

    Args:
        window: games of which a win rate is the average.

    Games of the policy against itself say nothing, and are not reported.
    """

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
        self._totals.setdefault(opponent, [0, 0, 0])[WIN - result] += 1
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
