"""State-space graphs: a world model's states, and arrays of their transitions in one shared segment."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import as_path, check_whole
from ..closing import ClosedAfterError
from ..errors import SegmentCorrupt
from ..lazy import missing
from ..memory import Segment, Shared, replace_file
from ..unpickling import unpickled
from .expansion import Expansion
from .layout import Shapes, bind, nbytes_of, pickled
from .model import Profiles
from .order import Edges, given_levels, longest_paths, topological_order, write_in_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNTS = {"agents": 1, "actions": 1, "states": 1, "rows": 0, "outcomes": 0, "pickled": 0}  # with their minimums
LARGEST = 2**40
MOST_PLOTTED = 300  # states; with more, the picture would be unreadable
_COLOURS = {True: "#dbe9f6", False: "#f6d8c6"}  # of states with transitions, and of terminal states
_ARROW = {"arrowstyle": "->", "color": "grey", "shrinkA": 8, "shrinkB": 8, "alpha": 0.6}
Transition = tuple[tuple[int, ...], list[float], list[int]]


class Graph(Shared):
    """The states that a world model can reach, in an order in which every successor comes later.

    `build_graph` makes a graph. Pass it, or its `handle`, to other processes: unpickling a Graph attaches to the same
    memory. After a fork, attach by the handle. The arrays are read-only. A state has one row for each possible profile.

    Attributes:
        agents: the number of agents. actions: the number of actions of each agent. profiles: actions ** agents.
        row_start: int64 [states + 1]; the rows of state i are row_start[i] to row_start[i + 1] - 1. A state without
            rows is terminal.
        profile: int32 [rows]; each row's profile, ascending within a state: the sum of action_i * actions^i.
        start: int64 [rows + 1]; the outcomes of row r are start[r] to start[r + 1] - 1.
        successor: int32 [outcomes]; each outcome's successor, in the order in which the model gave them.
        probability: float64 or float32 [outcomes]; None if the graph was built without them.
        level: int64 [states]; the number of transitions on the longest path to a terminal state, or the result of
            `level_fct`.
    """

    kind = "graph"

    def _understand(self, segment: Segment) -> None:
        counts = self._counts = segment.description
        arrays = bind(_shapes(counts), segment.body)
        for array in arrays.values():
            array.flags.writeable = False
        self.row_start: NDArray[np.int64] = arrays["row_start"]
        self.profile: NDArray[np.int32] = arrays["profile"]
        self.start: NDArray[np.int64] = arrays["start"]
        self.successor: NDArray[np.int32] = arrays["successor"]
        self.probability: NDArray[Any] | None = arrays.get("probability")
        self.level: NDArray[np.int64] = arrays["level"]
        self._pickled = arrays["pickled"]
        profiles = Profiles(counts["agents"], counts["actions"])
        self.agents, self.actions, self.profiles = profiles.agents, profiles.actions, len(profiles)
        for starts, end in ((self.row_start, counts["rows"]), (self.start, counts["outcomes"])):
            if starts[0] != 0 or starts[-1] != end or (starts[1:] < starts[:-1]).any():
                raise ValueError(f"starts: expected numbers that rise from 0 to {end}")
        for values, end in ((self.successor, len(self)), (self.profile, self.profiles)):
            if len(values) and not 0 <= values.min() <= values.max() < end:
                raise ValueError(f"values: expected numbers from 0 to {end - 1}")

    @classmethod
    def of(
        cls,
        expansion: Expansion,
        profiles: Profiles,
        probability: str | None,
        level_fct: Callable[[Any], int] | None,
        check_memory: Callable[[int, int], None],
    ) -> Graph:
        """Orders a complete expansion and makes its graph. Raises ValueError, TypeError: see `build_graph`.

        Calls `check_memory(states, bytes)` before it allocates the segment, since only then the states are pickled.
        """
        edges = Edges.of(expansion.first, np.asarray(expansion.successor))
        order = topological_order(expansion.states, edges)
        level = longest_paths(edges, order) if level_fct is None else given_levels(expansion.states, edges, level_fct)
        states = [expansion.states[number] for number in order]
        content = pickled(states, "states: expected something that can be pickled ({})")
        counts = {
            "agents": profiles.agents, "actions": profiles.actions, "states": len(states),
            "rows": len(expansion.profile), "outcomes": len(expansion.successor), "pickled": len(content),
            "probability": probability,
        }  # fmt: skip
        shapes = _shapes(counts)
        check_memory(len(states), nbytes_of(shapes))
        segment = Segment.create("graph", {"kind": cls.kind, **counts}, nbytes_of(shapes))
        with ClosedAfterError(segment):
            arrays = bind(shapes, segment.body)
            arrays["pickled"][:] = content
            arrays["level"][:] = level[order]
            write_in_order(arrays, expansion, np.array(order, np.int64))
            graph = cls(segment)
        graph.states = states
        return graph

    @cached_property
    def states(self) -> list[Any]:
        """The states in the graph's order. An attached or loaded graph unpickles them at the first use."""
        self.check_open()
        states = unpickled(self._pickled.data)
        if not isinstance(states, list) or len(states) != len(self):
            raise SegmentCorrupt(f"{self._segment.path}: the pickled states are damaged")
        return states

    @cached_property
    def index(self) -> dict[Hashable, int]:
        """The number of each state."""
        return {state: number for number, state in enumerate(self.states)}

    @cached_property
    def levels(self) -> list[NDArray[np.int64]]:
        """For each level, its states' numbers, int64, ascending; a state's successors are in earlier entries."""
        order = np.argsort(self.level, kind="stable")
        cuts = np.flatnonzero(np.diff(self.level[order])) + 1
        source = int(np.searchsorted(self.row_start, 0, "right")) - 1  # of the first outcome
        rises = len(self.successor) and self.level[self.successor[0]] > self.level[source]
        return np.split(order, cuts)[:: -1 if rises else 1]

    def successors_of(self, state: int) -> NDArray[np.int32]:
        """Returns the distinct successors of the state with this number, ascending, int32 [successors]."""
        low, high = self.start[self.row_start[[state, state + 1]]]
        return np.unique(self.successor[low:high])

    def to_lists(self) -> tuple[list[Any], dict[Hashable, int], list[list[int]], list[list[Transition]]]:
        """Returns the graph as Python lists (states, index, successors, transitions).

        transitions[i] has (profile, probabilities, successors) for each possible profile; without probabilities in the
        graph, their lists are empty.
        """
        all_profiles = Profiles(self.agents, self.actions)
        profiles = {index: all_profiles[index] for index in np.unique(self.profile).tolist()}
        edges = Edges.of(self.start[self.row_start], self.successor)
        successor = self.successor.tolist()
        probability = [] if self.probability is None else self.probability.tolist()
        start, first = self.start.tolist(), self.row_start.tolist()
        rows: list[Transition] = [
            (profiles[index], probability[start[row] : start[row + 1]], successor[start[row] : start[row + 1]])
            for row, index in enumerate(self.profile.tolist())
        ]
        transitions = [rows[first[i] : first[i + 1]] for i in range(len(self))]
        return [*self.states], {**self.index}, [after for _, after in edges.of_each(range(len(self)))], transitions

    def plot(self, path: str | os.PathLike[str] | None = None, label: Callable[[Any], str] | None = None) -> Figure:
        """Draws a small graph as a matplotlib figure: states in columns by level, with an arrow to each successor.

        Args:
            path: an image file to write the figure to.
            label: returns a state's text; by default its number.

        Raises: ValueError: the graph has more than 300 states.
        """
        if len(self) > MOST_PLOTTED:
            raise ValueError(f"plot: expected a graph of at most {MOST_PLOTTED} states, got {len(self)}")
        texts = [str(label(state)) for state in self.states] if label else [*map(str, range(len(self)))]
        figure = _plotted(self.levels, [*map(self.successors_of, range(len(self)))], texts)
        if path is not None:
            figure.savefig(path)
        return figure

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the graph to a file and atomically replaces an earlier one; it is on disk when the call returns.

        Raises: SharedMemoryFull: the file system has no room. ValueError: the path is no ordinary file in a directory.
        """
        self.check_open()
        body = self._segment.body
        replace_file(as_path("path", path).absolute(), self._segment.description, len(body), lambda put: put(0, body))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Graph:
        """Loads a saved graph as a new one. Its states are pickled: load only files that you trust.

        Raises: SegmentNotFound: there is no such file. SegmentCorrupt: it is no graph. SharedMemoryFull: no room.
        """
        with cls.attach(as_path("path", path).resolve()) as saved:
            saved._segment.verify()
            about, body = saved._segment.description, saved._segment.body
            return cls(Segment.create("graph", about, len(body), fill=lambda put: put(0, body)))

    def __len__(self) -> int:
        """Returns the number of states."""
        return int(self._counts["states"])

    def __repr__(self) -> str:
        states, rows, outcomes = (self._counts[name] for name in ("states", "rows", "outcomes"))
        return f"<Graph {self._segment.path} states={states} rows={rows} outcomes={outcomes}>"


def _shapes(counts: Mapping[str, Any]) -> Shapes:
    for name, least in COUNTS.items():
        check_whole(name, counts[name], least, LARGEST)
    states, rows, outcomes = counts["states"], counts["rows"], counts["outcomes"]
    shapes = {
        "row_start": ("int64", (states + 1,)),
        "profile": ("int32", (rows,)),
        "start": ("int64", (rows + 1,)),
        "successor": ("int32", (outcomes,)),
        "level": ("int64", (states,)),
        "pickled": ("uint8", (counts["pickled"],)),
    }
    dtype = counts["probability"]
    if dtype not in (None, "float32", "float64"):
        raise ValueError(f"probability: expected float32, float64 or None, got {dtype!r}")
    return {**shapes, "probability": (dtype, (outcomes,))} if dtype else shapes


def _plotted(
    levels: Sequence[NDArray[np.int64]], successors: Sequence[NDArray[np.int32]], texts: Sequence[str]
) -> Figure:
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
