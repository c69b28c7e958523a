"""The outcome of an evaluation: returns by agent, with confidence intervals."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from .tables import FittedTable

__all__ = ["Evaluation"]

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
    """

    returns: Mapping[str, NDArray[np.float64]]
    lengths: Mapping[str, NDArray[np.int64]]
    infos: Mapping[str, Mapping[str, float]]

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
        """By agent: the sample standard deviation of the return; NaN after one episode."""
        return {agent: _std(returns) for agent, returns in self.returns.items()}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """By agent: the 95 % confidence interval of the mean return (Student's t); NaN after one episode."""
        found = {}
        for agent, returns in self.returns.items():
            mean = float(returns.mean())
            half = t_975(len(returns) - 1) * _std(returns) / math.sqrt(len(returns))
            found[agent] = mean - half, mean + half
        return found

    def __rich__(self) -> FittedTable:
        names = list(dict.fromkeys(name for numbers in self.infos.values() for name in numbers))
        headline = [f"{self.episodes} episode{'s' if self.episodes > 1 else ''}"]
        titles = [*TITLES, *(f"info/{name}" for name in names)]
        return FittedTable(headline, "agent", titles, {agent: self._cells(agent, names) for agent in self.returns})

    def _cells(self, agent: str, infos: list[str]) -> list[str]:
        returns, (low, high) = self.returns[agent], self.interval[agent]
        single = len(returns) == 1
        return [
            f"{returns.mean():,.2f}",
            "-" if single else f"{low:,.2f} to {high:,.2f}",
            "-" if single else f"{_std(returns):,.2f}",
            f"{returns.min():,.2f}",
            f"{returns.max():,.2f}",
            f"{self.lengths[agent].mean():,.1f}",
            *(f"{self.infos[agent][name]:,.4g}" if name in self.infos.get(agent, {}) else "" for name in infos),
        ]

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDTH, color_system=None).print(self)
        return text.getvalue().rstrip("\n")


def _std(returns: NDArray[np.float64]) -> float:
    return float(returns.std(ddof=1)) if len(returns) > 1 else math.nan


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
