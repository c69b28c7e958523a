"""The outcome of PSRO: its policies, the table of their payoffs, and a player that acts by the mixture."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..evaluation import LoadedPolicy
from ..record import canvas, read_json, write_json

TABLE, PICTURE = "psro.json", "psro.png"
_MOST_NUMBERED = 16  # policies, of which a picture shows each payoff as a number


class MixedPlayer:
    """Draws one of several policies where an episode begins, and acts by it until its end; greedily, as they do.

    It can stand in `policies=` of `evaluate`, where each copy of the environment has a player with draws of its own.
    """

    def __init__(self, policies: Sequence[LoadedPolicy], mixture: NDArray[np.float64], seed: int | None = 0) -> None:
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
class PSROResult:
    """The outcome of `psro`.

    Attributes:
        run_dir: the directory of psro.json, psro.png and of one run for each iteration, iteration-1 and so on.
        policies: in the order of their training; the first one is untrained.
        mixture: float64 [policies], the probability of each, by the meta-solver.
        payoffs: float64 [policies, policies], the mean return of the policy of the row against that of the column.
        half_widths: float64 [policies, policies], half the width of the payoff's 95 % confidence interval; NaN where
            all games were copies of one, so that nothing is known of their spread.
        gains: by iteration, the mean return of the new policy against the mixture before it, and half the width of its
            interval.
    """

    run_dir: Path
    policies: list[LoadedPolicy] = field(default_factory=list)
    mixture: NDArray[np.float64] = field(default_factory=lambda: np.ones(1))
    payoffs: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))
    half_widths: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))
    gains: list[tuple[float, float]] = field(default_factory=list)

    def player(self, seed: int | None = 0) -> MixedPlayer:
        """A player that draws a policy by the mixture for each episode; `seed` is of its draws."""
        return MixedPlayer(self.policies, self.mixture, seed)


def add_policy(result: PSROResult, means: NDArray[np.float64], halves: NDArray[np.float64]) -> None:
    """Takes in the payoffs of a new policy against the earlier ones, whose mixture is still the old one."""
    met = result.mixture > 0  # the intervals of others may be unknown
    half = np.sqrt(halves[met] ** 2 @ result.mixture[met] ** 2)
    result.gains.append((float(means @ result.mixture), float(half)))
    result.payoffs = np.block([[result.payoffs, -means[:, None]], [means[None], np.zeros((1, 1))]])
    result.half_widths = np.block([[result.half_widths, halves[:, None]], [halves[None], np.zeros((1, 1))]])


def write_result(result: PSROResult, meta_solver: str) -> None:
    """Replaces psro.json, where null stands for NaN."""
    tables = {"payoffs": result.payoffs, "half_widths": result.half_widths, "gains": np.array(result.gains)}
    cells = {name: table.astype(object) for name, table in tables.items()}
    for name, table in tables.items():
        cells[name][np.isnan(table)] = None
    numbers = {name: values.tolist() for name, values in cells.items()}
    write_json(result.run_dir / TABLE, {"meta_solver": meta_solver, "mixture": result.mixture.tolist(), **numbers}, 1)


def read_result(folder: Path) -> PSROResult:
    """What `write_result` wrote, without the policies. Raises ValueError: the file is damaged. OSError."""
    saved = read_json(folder / TABLE)
    mixture, payoffs, halves, gains = (
        np.array(saved[name], np.float64) for name in ("mixture", "payoffs", "half_widths", "gains")
    )
    return PSROResult(folder, [], mixture, payoffs, halves, [*map(tuple, gains.tolist())])


def plot_result(result: PSROResult, meta_solver: str) -> None:
    """Draws the payoffs as a heat map, psro.png."""
    largest, count = float(np.abs(result.payoffs).max()) or 1.0, len(result.mixture)
    with canvas(result.run_dir / PICTURE, f"PSRO, {meta_solver}", max(4.0, 2.0 + 0.45 * count)) as (figure, axes):
        image = axes.imshow(result.payoffs, cmap="RdYlGn", vmin=-largest, vmax=largest, aspect="auto")
        axes.set_xticks(range(count))
        axes.set_yticks(range(count), [f"{number} ({share:.2f})" for number, share in enumerate(result.mixture)])
        axes.set_xlabel("against policy", fontsize=12)
        axes.set_ylabel("policy (share of the mixture)", fontsize=12)
        for (row, column), value in np.ndenumerate(result.payoffs) if count <= _MOST_NUMBERED else ():
            axes.text(column, row, f"{value:.2f}", ha="center", va="center")
        figure.colorbar(image, ax=axes, label="mean return")
