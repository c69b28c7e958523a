"""The payoff table as a picture: the win rate against each opponent over the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..record import canvas, read_json, say_that_none_ended


def draw_payoff(table: Path, path: Path, title: str) -> None:
    """Draws a heat map of the table in payoff.json as a PNG: a row for each opponent, a column for each noted step."""
    found = read_json(table)
    names, steps, rates = _grid(found["history"])
    with canvas(path, title, max(3.0, 1.5 + 0.3 * len(names))) as (figure, axes):
        if not names:
            say_that_none_ended(axes)
            return
        mesh = axes.pcolormesh(_edges(steps), np.arange(len(names) + 1), rates, vmin=0, vmax=1, cmap="RdYlGn")
        games = found["opponents"]
        labels = [f"{name} ({games[name]['games']:,})" for name in names]
        axes.set_yticks(np.arange(len(names)) + 0.5, labels)
        axes.set_xlabel("environment steps", fontsize=12)
        axes.set_ylabel("opponent (games)", fontsize=12)
        figure.colorbar(mesh, ax=axes, label="win rate over the last games")


def _grid(history: list[dict[str, Any]]) -> tuple[list[str], NDArray[Any], NDArray[np.float64]]:
    """Opponents, steps, and the win rates [opponents, steps], NaN where there is none."""
    names = list(dict.fromkeys(name for row in history for name in row["win_rates"]))
    rates = np.array([[row["win_rates"].get(name, np.nan) for row in history] for name in names])
    return names, np.array([row["step"] for row in history], np.float64), rates


def _edges(steps: NDArray[Any]) -> NDArray[Any]:
    """The borders of the columns: each reaches from the step noted before to its own."""
    return np.concatenate([[min(0.0, steps[0] - 1)], np.maximum.accumulate(steps)])
