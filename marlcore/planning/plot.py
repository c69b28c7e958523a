"""The picture of a small state-space graph."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..lazy import missing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {True: "#dbe9f6", False: "#f6d8c6"}  # of states with transitions, and of ends
_ARROW = {"arrowstyle": "->", "color": "grey", "shrinkA": 8, "shrinkB": 8, "alpha": 0.6}


def plot_graph(
    levels: Sequence[NDArray[np.int64]], successors: Sequence[NDArray[np.int32]], texts: Sequence[str]
) -> "Figure":
    """A figure of states in columns by level, each with its text, and an arrow to each successor; see `Graph.plot`."""
    try:  # here: matplotlib takes longer to import than marlcore itself
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise missing("graph.plot", error) from None

    places = _places(levels, successors)
    size = (2 + 1.2 * len(levels), 2 + 0.45 * max(map(len, levels)))
    figure = Figure(figsize=(min(size[0], 40), min(size[1], 40)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axis_off()
    for place, after in zip(places, successors, strict=True):
        for to in places[after]:
            axes.annotate("", to, place, arrowprops=_ARROW)
    for state, (x, y) in enumerate(places.tolist()):
        box = {"boxstyle": "round", "facecolor": _COLOURS[len(successors[state]) > 0], "edgecolor": "grey"}
        axes.text(x, y, texts[state], ha="center", va="center", fontsize=7, parse_math=False, bbox=box)
    axes.set_xlim(places[:, 0].min() - 0.5, places[:, 0].max() + 0.5)
    axes.set_ylim(places[:, 1].min() - 0.5, places[:, 1].max() + 0.5)
    return figure


def _places(levels: Sequence[NDArray[np.int64]], successors: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
    places = np.zeros((len(successors), 2))
    sums, counts = np.zeros(len(successors)), np.zeros(len(successors))
    for column, states in enumerate(reversed(levels)):
        wanted = sums[states] / np.maximum(counts[states], 1)
        order = states[np.argsort(wanted, kind="stable")]
        places[order, 0] = column
        places[order, 1] = np.arange(len(order)) - (len(order) - 1) / 2
        for state in order.tolist():
            sums[successors[state]] += places[state, 1]
            counts[successors[state]] += 1
    return places
