"""A picture of a small graph: states in columns by level, from the initial state on the left to the ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..lazy import missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST = 300  # states; with more, nobody sees anything
_COLOURS = ("#dbe9f6", "#f6d8c6")  # of states with transitions, and of ends


class _Graph(Protocol):
    """What a picture needs of a `Graph`."""

    row_start: NDArray[Any]

    @property
    def states(self) -> Sequence[Any]: ...
    @property
    def levels(self) -> Sequence[NDArray[Any]]: ...
    def successors_of(self, state: int) -> NDArray[Any]: ...
    def __len__(self) -> int: ...


def plotted(graph: _Graph, label: Callable[[Any], str] | None) -> Figure:
    """A figure with each state as its number, or its label, and an arrow to each of its successors.

    Raises: ValueError: the graph has more than 300 states.
    """
    # Imported here: matplotlib takes longer to import than marlcore itself.
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise missing("graph.plot", error) from None

    if len(graph) > MOST:
        raise ValueError(f"plot: expected a graph of at most {MOST} states, got {len(graph)}")
    places = _places(graph)
    size = (2 + 1.2 * len(graph.levels), 2 + 0.45 * max(map(len, graph.levels)))
    figure = Figure(figsize=(min(size[0], 40), min(size[1], 40)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    for state in range(len(graph)):
        for successor in graph.successors_of(state).tolist():
            arrow = {"arrowstyle": "->", "color": "grey", "shrinkA": 8, "shrinkB": 8, "alpha": 0.6}
            axes.annotate("", places[successor], places[state], arrowprops=arrow)
    terminal = np.diff(graph.row_start) == 0
    for state, (x, y) in enumerate(places.tolist()):
        text = str(state) if label is None else str(label(graph.states[state]))
        box = {"boxstyle": "round", "facecolor": _COLOURS[int(terminal[state])], "edgecolor": "grey"}
        axes.text(x, y, text, ha="center", va="center", fontsize=7, parse_math=False, bbox=box)
    axes.set_xlim(places[:, 0].min() - 0.5, places[:, 0].max() + 0.5)
    axes.set_ylim(places[:, 1].min() - 0.5, places[:, 1].max() + 0.5)
    return figure


def _places(graph: _Graph) -> NDArray[np.float64]:
    """Each state's place, [states, 2]; in a column, states have the order of their predecessors' mean heights."""
    places = np.zeros((len(graph), 2))
    sums, counts = np.zeros(len(graph)), np.zeros(len(graph))
    for column, states in enumerate(reversed(graph.levels)):
        wanted = sums[states] / np.maximum(counts[states], 1)
        order = states[np.argsort(wanted, kind="stable")]
        places[order, 0] = column
        places[order, 1] = np.arange(len(order)) - (len(order) - 1) / 2
        for state in order.tolist():
            after = graph.successors_of(state)
            sums[after] += places[state, 1]
            counts[after] += 1
    return places
