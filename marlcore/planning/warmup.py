"""Compiling the kernels of planning in advance, so that no first call waits for the compiler."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from itertools import product
from time import monotonic
from types import SimpleNamespace
from typing import Any, Literal

from .building import build_graph
from .goals import Goals
from .induction import DTYPES, backward_induction
from .robots import robot_induction

PROBABILITIES: tuple[Literal["float64", "float32"], ...] = ("float64", "float32")


class _Step:
    """One step of two agents."""

    agents: Sized = (0, 1)
    action_space: Any = SimpleNamespace(n=1)

    def reset(self) -> None:
        """The caller passes each state."""

    def get_state(self) -> int:
        return 0

    def set_state(self, state: int) -> None:
        """As `reset`."""

    def transition_probabilities(self, state: int, profile: Sequence[int]) -> list[tuple[float, int]] | None:
        return None if state else [(1.0, 1)]


def warm_up() -> float:
    """Compiles or loads the kernels of planning; returns the seconds taken."""
    began = monotonic()
    kinds: tuple[Goals, ...] = ({0: [bool]}, _offer)
    for probabilities, goals, dtype in product(PROBABILITIES, kinds, DTYPES):
        with (
            build_graph(_Step(), workers=1, probabilities=probabilities, progress=False) as graph,
            backward_induction(graph, goals, [0], dtype=dtype, workers=1) as people,
        ):
            robot_induction(graph, people, lambda attainable, weights: attainable[0][:, 0], workers=1)
    return monotonic() - began


def _offer(state: int, agent: int) -> list[tuple[type[bool], float]]:
    """Goals by state, whose weights are another kind of array than those of a list of goals."""
    return [(bool, 1.0)]
