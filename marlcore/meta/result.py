"""The outcome of PSRO: its policies, their payoff table, and a player that acts by the mixture."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..evaluation import LoadedPolicy, MixedPlayer
from ..fixed import fixed
from ..record import believed, canvas, read_json, write_json

TABLE, PICTURE, TABLES = "psro.json", "psro.png", ("payoffs", "half_widths")
_MOST_NUMBERED = 16  # with more policies, the picture shows payoffs only as colours


@dataclass
class Population:
    """The policies of one agent, or of both agents; see `PSROResult`."""

    policies: list[LoadedPolicy] = field(default_factory=list)
    mixture: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    gains: list[tuple[float, float]] = field(default_factory=list)
    place: int = 0  # 1 for the second agent

    def player(self, seed: int | None = 0) -> MixedPlayer:
        """Returns a player that draws a policy from the mixture for each episode.

        `seed` seeds the draws: two players of the same population in one game need different seeds.
        """
        return MixedPlayer(self.policies, self.mixture, None if seed is None else [self.place, seed])


@fixed("policies", "mixture", "gains", "payoffs", "half_widths")
@dataclass(kw_only=True)
class PSROResult(Population):
    """The outcome of `psro`.

    Attributes:
        run_dir: the directory of psro.json, psro.png, the checkpoints, and the runs, in iteration-1, iteration-2, ...
        policies: the first agent's policies, or both agents', in the order of training; policies[0] is untrained.
        mixture: float64 [policies], the probability of each policy, by the meta-solver.
        gains: for each iteration, the new policy's mean return against the opponent's mixture, minus the mean return of
            the previous mixture; and half the width of this difference's 95 % confidence interval.
        opponent: `policies`, `mixture` and `gains` of the second agent; None if both agents share one population.
        payoffs: float64 [policies, policies], the mean return of the row's policy against the column's policy. Columns
            are the opponent's policies.
        half_widths: float64 [policies, policies], half the width of each payoff's 95 % confidence interval; NaN if all
            games were copies of one game, so their spread is unknown.
    """

    run_dir: Path
    opponent: Population | None = None
    payoffs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))
    half_widths: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))

    @property
    def populations(self) -> tuple[Population, ...]:
        """The populations of the first and the second agent, or the one that they share."""
        return (self,) if self.opponent is None else (self, self.opponent)


def add_policies(result: PSROResult, payoffs: NDArray[np.float64], halves: NDArray[np.float64]) -> None:
    """Sets the enlarged tables, and adds the new policies' gains; the result must still have the previous mixtures."""
    first, second = result.mixture, result.populations[-1].mixture
    views = (first, second, payoffs, halves), (second, first, -payoffs.T, halves.T)
    for population, (mixture, other, means, widths) in zip(result.populations, views, strict=False):
        shares = np.zeros_like(means)
        shares[-1, :-1] = other
        if result.opponent is not None:  # with one population, the mixture's return against itself is 0
            shares[:-1, :-1] = -np.outer(mixture, other)
        met = shares != 0  # leaves out the half widths of other games, which may be NaN
        population.gains.append((float(shares[met] @ means[met]), float(np.linalg.norm(shares[met] * widths[met]))))
    result.payoffs, result.half_widths = payoffs, halves


def write_result(result: PSROResult, meta_solver: str) -> None:
    """Writes the result to psro.json, where null means NaN."""
    members = {"meta_solver": meta_solver, **_plain(result, "mixture", "payoffs", "half_widths", "gains")}
    if result.opponent is not None:
        members["opponent"] = _plain(result.opponent, "mixture", "gains")
    write_json(result.run_dir / TABLE, members, 1)


def _plain(population: Population, *names: str) -> dict[str, Any]:
    tables = {name: np.array(getattr(population, name), np.float64) for name in names}
    return {name: np.where(np.isnan(table), np.array(None), table).tolist() for name, table in tables.items()}


def read_into(result: PSROResult) -> None:
    """Fills a result, except its policies, from the file that `write_result` wrote.

    Raises ValueError if the file does not exist, is damaged, or has another number of populations.
    """
    with believed("resume: expected the directory of a psro", result.run_dir, TABLE):
        saved = read_json(result.run_dir / TABLE)
        sides = [saved, saved["opponent"]] if "opponent" in saved else [saved]
        count = 1 + np.size(saved["gains"]) // 2
        for population, side in zip(result.populations, sides, strict=False):
            population.mixture = _numbers(side, "mixture", -1)
            population.gains = [*map(tuple, _numbers(side, "gains", count - 1, 2).tolist())]
        result.payoffs, result.half_widths = (_numbers(saved, name, count, count) for name in TABLES)
    if len(sides) != len(result.populations):
        raise ValueError(f"resume: expected a psro of {len(result.populations)} populations, got {len(sides)}")


def _numbers(saved: Any, name: str, *shape: int) -> NDArray[np.float64]:
    """Returns a saved array. Raises KeyError if it is missing, TypeError if it does not have the shape `shape`."""
    try:
        return np.array(saved[name], np.float64).reshape(shape)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"{name}: expected numbers {list(shape)}, got {brief(saved)}") from None


def plot_result(result: PSROResult, meta_solver: str) -> None:
    """Draws the payoffs as a heat map, psro.png."""
    largest, count, other = float(np.abs(result.payoffs).max()) or 1.0, len(result.payoffs), result.populations[-1]
    with canvas(result.run_dir / PICTURE, f"PSRO, {meta_solver}", max(4.0, 2.0 + 0.45 * count)) as (figure, axes):
        image = axes.imshow(result.payoffs, cmap="RdYlGn", vmin=-largest, vmax=largest, aspect="auto")
        axes.set_xticks(range(count), [f"{number}\n{share:.2f}" for number, share in enumerate(other.mixture)])
        axes.set_yticks(range(count), [f"{number} ({share:.2f})" for number, share in enumerate(result.mixture)])
        axes.set_xlabel("against policy (its share)", fontsize=12)
        axes.set_ylabel("policy (share of the mixture)", fontsize=12)
        for (row, column), value in np.ndenumerate(result.payoffs) if count <= _MOST_NUMBERED else ():
            axes.text(column, row, f"{value:.2f}", ha="center", va="center")
        figure.colorbar(image, ax=axes, label="mean return")
