"""Discounts of transitions: e^(-rho D) = gamma^D for a transition of the duration D."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import came, is_number
from .graph import Graph
from .model import Profiles
from .tabulate import Numbers, Tabulate, naming

# (state, profile, [(probability, successor), ...]) -> a duration of each outcome
Durations = Callable[[Any, tuple[int, ...], list[tuple[float, Any]]], Sequence[float]]


@dataclass(frozen=True)
class Discount:
    """What a value loses in a time; give `gamma` or `rho`, or neither for no discount.

    Attributes:
        gamma: a factor for a duration of 1, above 0 and up to 1.
        rho: the rate, at least 0: -ln(gamma).
    """

    gamma: float | None = None
    rho: float | None = None

    def __post_init__(self) -> None:
        if self.gamma is not None and self.rho is not None:
            raise ValueError(f"expected gamma or rho, got both: {self.gamma!r} and {self.rho!r}")
        if self.gamma is not None and not (is_number(self.gamma) and 0 < self.gamma <= 1):
            raise ValueError(f"gamma: expected a number above 0 and up to 1, got {self.gamma!r}")
        if self.rho is not None and not (is_number(self.rho) and 0 <= self.rho < math.inf):
            raise ValueError(f"rho: expected a finite number of at least 0, got {self.rho!r}")

    @property
    def depends_on_time(self) -> bool:
        """Whether there is any discount."""
        return self.over(1.0) < 1.0

    def over(self, duration: float) -> float:
        """The factor for a duration."""
        if self.rho is not None:
            return math.exp(-self.rho * duration)
        return 1.0 if self.gamma is None else math.pow(self.gamma, duration)

    def of_each(self, durations: NDArray[np.float64]) -> NDArray[np.float64]:
        """The factor of each outcome. `math` computes it: NumPy's powers may differ from it in the last bit."""
        return np.array([self.over(duration) for duration in durations.tolist()])


def tabulate_durations(
    tabulate: Tabulate, graph: Graph, durations: Durations | None, *discounts: Discount
) -> NDArray[np.float64]:
    """The duration of each outcome, float64 [outcomes]; [1] if all are equal, or no discount depends on them.

    Raises: ValueError: durations are negative, no numbers, or not as many as the outcomes.
    """
    if durations is None or not any(discount.depends_on_time for discount in discounts):
        return np.ones(1)
    return np.concatenate(tabulate(_Durations(durations), range(len(graph))))


@dataclass(frozen=True)
class _Durations:
    """The durations of all outcomes of states."""

    durations: Durations

    def __call__(self, graph: Graph, numbers: Numbers) -> NDArray[np.float64]:
        states: list[Any] = [graph.states[i] for i in numbers]
        profiles = Profiles(graph.agents, graph.actions)
        said: list[list[tuple[tuple[int, ...], int, list[float]]]] = []
        with naming("the function of durations", states, said):
            said.extend([*self._ask(graph, profiles, i)] for i in numbers)
        given = [self._checked(state, *one) for state, rows in zip(states, said, strict=True) for one in rows]
        return np.array([duration for row in given for duration in row])

    def _ask(self, graph: Graph, profiles: Profiles, i: int) -> Iterator[tuple[tuple[int, ...], int, list[float]]]:
        """Each profile, its number of outcomes, and their durations."""
        assert graph.probability is not None
        for row in range(graph.row_start[i], graph.row_start[i + 1]):
            outcomes, profile = slice(graph.start[row], graph.start[row + 1]), profiles[int(graph.profile[row])]
            successors = [graph.states[j] for j in graph.successor[outcomes].tolist()]
            pairs = [*zip(graph.probability[outcomes].tolist(), successors, strict=True)]
            yield profile, len(pairs), [*map(float, self.durations(graph.states[i], profile, pairs))]

    @staticmethod
    def _checked(state: Any, profile: tuple[int, ...], outcomes: int, given: list[float]) -> list[float]:
        if len(given) != outcomes or not all(0 <= duration < math.inf for duration in given):
            raise ValueError(
                f"durations: expected {outcomes} finite numbers of at least 0 for profile {profile} in state "
                f"{came(state)}, got {came(given)}"
            )
        return given
