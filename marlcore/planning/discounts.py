"""Discounts transitions by e^(-rho D) = gamma^D, where D is the transition's duration."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..declared import Declared, Number
from .graph import Graph
from .kernels.expectations import GraphArrays
from .model import Profiles
from .tabulate import Numbers, Tabulate, answers

# (state, profile, [(probability, successor), ...]) -> a duration of each outcome
Durations = Callable[[Any, tuple[int, ...], list[tuple[float, Any]]], Sequence[float]]


@dataclass(frozen=True)
class Discount(Declared):
    """A discount: its factor `gamma` for a duration of 1, or its rate `rho` = -ln(gamma); with neither, no discount."""

    gamma: Annotated[float | None, Number(above=0, high=1)] = None
    rho: Annotated[float | None, Number(0)] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gamma is not None and self.rho is not None:
            raise ValueError(f"expected gamma or rho, got both: {self.gamma!r} and {self.rho!r}")

    def over(self, duration: float) -> float:
        if self.rho is not None:
            return math.exp(-self.rho * duration)
        return 1.0 if self.gamma is None else math.pow(self.gamma, duration)


def discounted_rows(tabulate: Tabulate, durations: Durations | None, *discounts: Discount) -> list[GraphArrays]:
    """Returns the graph's arrays for kernels, once for each discount; calls `durations` if some discount needs them."""
    graph = tabulate.graph
    if graph.probability is None:
        raise ValueError("graph: expected a graph with probabilities, got one of build_graph(..., probabilities=False)")
    lasting = [1.0]  # one duration for all outcomes, or a duration for each
    if durations is not None and any(discount.over(1.0) < 1.0 for discount in discounts):
        lasting = np.concatenate(tabulate(partial(_durations, durations), range(len(graph)))).tolist()
    arrays = graph.row_start, graph.profile, graph.start, graph.successor, graph.probability
    # `math` computes the factors: NumPy's powers may differ from it in the last bit.
    factors = [np.array([discount.over(duration) for duration in lasting]) for discount in discounts]
    return [GraphArrays(*arrays, discount, int(len(discount) > 1), graph.profiles) for discount in factors]


def _durations(durations: Durations, graph: Graph, numbers: Numbers) -> NDArray[np.float64]:
    assert graph.probability is not None
    profiles = Profiles(graph.agents, graph.actions)
    rows = []
    for i in numbers:
        for row in range(graph.row_start[i], graph.row_start[i + 1]):
            outcomes, profile = slice(graph.start[row], graph.start[row + 1]), profiles[int(graph.profile[row])]
            successors = [graph.states[j] for j in graph.successor[outcomes].tolist()]
            pairs = [*zip(graph.probability[outcomes].tolist(), successors, strict=True)]
            rows.append((graph.states[i], profile, pairs))
    calls = ([*map(float, durations(*row))] for row in rows)
    lasting = answers("the function of durations", [state for state, _, _ in rows], calls)
    for (state, profile, pairs), of_row in zip(rows, lasting, strict=True):
        if len(of_row) != len(pairs) or not all(0 <= duration < math.inf for duration in of_row):
            raise ValueError(
                f"durations: expected {len(pairs)} finite numbers of at least 0 for profile {profile} in state "
                f"{brief(state)}, got {brief(of_row)}"
            )
    return np.array([duration for of_row in lasting for duration in of_row])
