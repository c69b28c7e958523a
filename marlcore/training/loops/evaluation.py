"""The outcome of an evaluation: returns by agent, with confidence intervals."""

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ...tables import FittedTable

TITLES = ("mean return", "95 % confidence", "std", "min", "max", "mean length")
WIDTH = 100  # of the table as text
T_975 = (  # of 1 to 15 degrees of freedom
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604,
    2.1448, 2.1314,
)  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation's episodes.

    Attributes:
        returns: by agent, float64 [episodes]; 0 where the agent never acted.
        lengths: by agent, int64 [episodes], its actions.
        infos: by agent and name, the mean of the numbers in its infos at the ends of episodes.
        distinct: episodes that differ from each other in an observation, an action or a reward. 1 after several
            episodes: all are copies of one game, so that nothing is known of the spread of returns.
    """

    returns: Mapping[str, NDArray[np.float64]]
    lengths: Mapping[str, NDArray[np.int64]]
    infos: Mapping[str, Mapping[str, float]]
    distinct: int

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return len(next(iter(self.returns.values())))

    @property
    def mean(self) -> dict[str, float]:
        """By agent: the mean return."""
        return {agent: float(returns.mean()) for agent, returns in self.returns.items()}

    @property
    def std(self) -> dict[str, float]:
        """By agent: the sample standard deviation of the return; NaN after one game and its copies."""
        if self.distinct == 1:
            return dict.fromkeys(self.returns, math.nan)
        return {agent: float(returns.std(ddof=1)) for agent, returns in self.returns.items()}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """By agent: the mean return's 95 % confidence interval; NaN after one game and its copies.

        mean +- t(d - 1) s / sqrt(d - 1), where d counts the distinct games, t is Student's 0.975 quantile, and s^2 the
        mean squared deviation of all episodes: copies of a game add nothing to what is known of the mean.
        """
        freedom = self.distinct - 1
        scale = t_975(freedom) / math.sqrt(max(freedom, 1))
        halves = {agent: scale * float(returns.std()) for agent, returns in self.returns.items()}
        return {agent: (mean - halves[agent], mean + halves[agent]) for agent, mean in self.mean.items()}

    def __rich__(self) -> FittedTable:
        names = list(dict.fromkeys(name for numbers in self.infos.values() for name in numbers))
        headline = [f"{self.episodes} episode{'s' if self.episodes > 1 else ''}"]
        if self.distinct == 1 < self.episodes:
            headline.append("all are copies of one game: neither the environment nor the policies vary it")
        elif self.distinct < self.episodes:
            headline.append(f"{self.distinct} of them distinct, the others are copies")
        titles = [*TITLES, *(f"info/{name}" for name in names)]
        return FittedTable(headline, "agent", titles, {agent: self._cells(agent, names) for agent in self.returns})

    def _cells(self, agent: str, infos: list[str]) -> list[str]:
        returns, (low, high) = self.returns[agent], self.interval[agent]
        single = self.distinct == 1
        return [
            f"{returns.mean():,.2f}",
            "-" if single else f"{low:,.2f} to {high:,.2f}",
            "-" if single else f"{self.std[agent]:,.2f}",
            f"{returns.min():,.2f}",
            f"{returns.max():,.2f}",
            f"{self.lengths[agent].mean():,.1f}",
            *(f"{self.infos[agent][name]:,.4g}" if name in self.infos.get(agent, {}) else "" for name in infos),
        ]

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDTH, color_system=None).print(self)
        return text.getvalue().rstrip("\n")


def t_975(freedom: int) -> float:
    """The 0.975 quantile of Student's t, within 1e-4.

    Beyond the table, the Cornish-Fisher expansion about the normal quantile (Abramowitz and Stegun, 26.7.5).
    """
    if freedom < 1:
        return math.nan
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z, n = NormalDist().inv_cdf(0.975), float(freedom)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / n + second / n**2 + third / n**3
