"""Compiles the kernels of planning in advance, so that no first call waits for the compiler."""

from itertools import product
from time import monotonic
from types import SimpleNamespace
from typing import Any, Literal

from .building import build_graph
from .goals import Goals
from .induction import DTYPES, backward_induction
from .robots import robot_induction

PROBABILITIES: tuple[Literal["float64", "float32"], ...] = ("float64", "float32")
ONE_STEP: Any = SimpleNamespace(  # a world model: one step of two agents
    agents=(0, 1),
    action_space=SimpleNamespace(n=1),
    reset=lambda: None,
    get_state=lambda: 0,
    set_state=lambda state: None,
    transition_probabilities=lambda state, profile: None if state else [(1.0, 1)],
)


def warm_up() -> float:
    """Compiles or loads the kernels of planning; returns the seconds taken."""
    began = monotonic()
    # The array of weights has another memory layout for a function of goals than for a list.
    kinds: tuple[Goals, ...] = ({0: [bool]}, lambda state, agent: [(bool, 1.0)])
    for probabilities, goals, dtype in product(PROBABILITIES, kinds, DTYPES):
        with (
            build_graph(ONE_STEP, workers=1, probabilities=probabilities, progress=False) as graph,
            backward_induction(graph, goals, [0], dtype=dtype, workers=1) as people,
        ):
            robot_induction(graph, people, lambda attainable, weights: attainable[0][:, 0], workers=1)
    return monotonic() - began
