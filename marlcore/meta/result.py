"""The outcome of PSRO: its policies, the table of their payoffs, and a player that acts by the mixture."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..evaluation import LoadedPolicy
from ..record import believed, canvas, read_json, write_json

TABLE, PICTURE, TABLES = "psro.json", "psro.png", ("payoffs", "half_widths")
_MOST_NUMBERED = 16  # policies, of which a picture shows each payoff as a number


class MixedPlayer:
    """Draws a policy by the mixture where an episode begins, and acts by it greedily until the episode ends.

    It can stand in `policies=` of `evaluate`, where each copy of the environment has a player with draws of its own.
    """

    def __init__(
        self, policies: Sequence[LoadedPolicy], mixture: NDArray[np.float64], seed: Sequence[int] | None = None
    ) -> None:
        self._policies, self._mixture, self._generator = list(policies), mixture, np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Begins an episode: draws its policy."""
        self._present = self._policies[int(self._generator.choice(len(self._policies), p=self._mixture))]
        self._present.reset()

    def act(self, obs: Any, mask: Any = None, reward: float = 0.0) -> int | NDArray[Any]:
        """The action of the policy that was drawn; see `LoadedPolicy.act`."""
        return self._present.act(obs, mask, reward)

    def __deepcopy__(self, memo: dict[int, Any]) -> MixedPlayer:
        copied = MixedPlayer(list(map(copy.copy, self._policies)), self._mixture)  # which share their weights
        (copied._generator,) = self._generator.spawn(1)
        copied.reset()
        return copied


@dataclass
class Population:
    """The policies of one agent, or of both; see `PSROResult`."""

    policies: list[LoadedPolicy] = field(default_factory=list)
    mixture: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    gains: list[tuple[float, float]] = field(default_factory=list)
    place: int = 0  # 1 of the second agent

    def player(self, seed: int | None = 0) -> MixedPlayer:
        """A player that draws a policy by the mixture for each episode.

        `seed` is of its draws: two players of one population need different ones in a game.
        """
        return MixedPlayer(self.policies, self.mixture, None if seed is None else [self.place, seed])


@dataclass(kw_only=True)
class PSROResult(Population):
    """The outcome of `psro`.

    Attributes:
        run_dir: the directory of psro.json, psro.png, checkpoints, and each iteration's runs, iteration-1 and so on.
        policies: those of the first agent, or of both, in the order of their training; the first one is untrained.
        mixture: float64 [policies], the probability of each, by the meta-solver.
        gains: by iteration, how much more than the mixture before it the new policy returned on average, both against
            the opponent's mixture, and half the width of the difference's 95 % confidence interval.
        opponent: `policies`, `mixture` and `gains` of the second agent; None where both have one population.
        payoffs: float64 [policies, policies], the mean return of the policy of the row against the opponent's policy of
            the column.
        half_widths: float64 [policies, policies], half the width of the payoff's 95 % confidence interval; NaN where
            all games were copies of one, so that nothing is known of their spread.
    """

    run_dir: Path
    opponent: Population | None = None
    payoffs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))
    half_widths: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))

    @property
    def populations(self) -> tuple[Population, ...]:
        """The first agent's and the second's, or the one of both."""
        return (self,) if self.opponent is None else (self, self.opponent)


def add_policies(result: PSROResult, payoffs: NDArray[np.float64], halves: NDArray[np.float64]) -> None:
    """Sets the tables, which have a new policy of each population, while the mixtures are still the old ones."""
    first, second = result.mixture, result.populations[-1].mixture
    views = (first, second, payoffs, halves), (second, first, -payoffs.T, halves.T)
    for population, (mixture, other, means, widths) in zip(result.populations, views, strict=False):
        shares = np.zeros_like(means)
        shares[-1, :-1] = other
        if result.opponent is not None:  # else the mixture returns 0 against itself
            shares[:-1, :-1] = -np.outer(mixture, other)
        met = shares != 0  # the intervals of others may be unknown
        population.gains.append((float(shares[met] @ means[met]), float(np.linalg.norm(shares[met] * widths[met]))))
    result.payoffs, result.half_widths = payoffs, halves


def write_result(result: PSROResult, meta_solver: str) -> None:
    """Replaces psro.json, where null stands for NaN."""
    members = {"meta_solver": meta_solver, **_plain(result, "mixture", "payoffs", "half_widths", "gains")}
    if result.opponent is not None:
        members["opponent"] = _plain(result.opponent, "mixture", "gains")
    write_json(result.run_dir / TABLE, members, 1)


def _plain(population: Population, *names: str) -> dict[str, Any]:
    tables = {name: np.array(getattr(population, name), np.float64) for name in names}
    return {name: np.where(np.isnan(table), np.array(None), table).tolist() for name, table in tables.items()}


def read_into(result: PSROResult) -> None:
    """Reads what `write_result` wrote, without the policies.

    Raises ValueError: the file does not exist, is damaged, or has another number of populations.
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
        raise ValueError(f"resume: expected a psro of {len(result.populations)} populations, got one of {len(sides)}")


def _numbers(saved: Any, name: str, *shape: int) -> NDArray[np.float64]:
    """An array that `write_result` wrote. Raises TypeError: it has another shape. KeyError."""
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
