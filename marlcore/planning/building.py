"""Building the graph of a world model: its states are enumerated, then ordered, then written to one segment."""

from collections.abc import Callable
from contextlib import closing
from typing import Any, Literal

import numpy as np

from ..checks import came, check_whole
from ..notices import shown_with
from .batches import count_workers
from .exploration import Exploration
from .graph import Graph
from .model import Profiles, WorldModel
from .order import Edges, given_levels, longest_paths, topological_order
from .watch import Watch


def build_graph(
    model: WorldModel,
    *,
    workers: int | None = None,
    probabilities: bool | Literal["float32", "float64"] = True,
    batch: int | None = None,
    progress: bool = True,
    level_fct: Callable[[Any], int] | None = None,
    min_free_memory_fraction: float = 0.1,
) -> Graph:
    """The graph of all states that the model can reach from its initial state.

    The graph is the same, to the last bit, for any number of workers, whatever worker is killed meanwhile, if the model
    is deterministic: at the end this process expands a sample of 32 states again. Afterwards the model is in its
    initial state.

    Args:
        model: see WorldModel. Workers have copies, pickled by value where another process cannot import them.
        workers: processes that expand states, this one included; None: as many as this process may use processors.
            The others start after 0.05 s, if the graph is not complete by then, and get states only where that saves
            time. With 1, nothing is pickled but the states.
        probabilities: False leaves them out of the graph; True means "float64".
        batch: states that a worker gets at a time; then the workers start at once, whatever the graph's size. None: as
            many as take 50 ms.
        progress: show a line on standard error while it is a terminal.
        level_fct: the level of a state, an integer that every transition lowers, or that every one raises. None: the
            transitions of the longest path to an end.
        min_free_memory_fraction: of the machine's memory, and of this process's limit; 0 checks nothing.

    Raises:
        ValueError: the transitions have a cycle, probabilities are negative or do not sum to 1, there are more than
            2^31 profiles, the model answers differently when asked again, `level_fct` contradicts the graph, or an
            argument is out of range.
        TypeError: a state is not hashable; the model or a state cannot be pickled, or changes when it is.
        WorldModelFailed: the model raised. WorkerFailed: four workers died of the same states.
        NotEnoughMemory, SharedMemoryFull: no room for the graph.
    """
    dtype, watch = _dtype(probabilities), Watch(min_free_memory_fraction, progress)
    workers = count_workers(workers)
    if batch is not None:
        check_whole("batch", batch)
    profiles = Profiles.of(model)
    model.reset()
    root = model.get_state()
    try:
        hash(root)
    except TypeError:
        raise TypeError(f"state: expected something hashable, got {came(root)}, the initial state") from None
    with shown_with(progress):
        with closing(watch):
            expansion = Exploration(model, profiles, root, workers, batch).run(watch.look)
        expansion.check_repeats(model.transition_probabilities, profiles)
        model.set_state(root)
        watch.check_memory(len(expansion.states), expansion.nbytes)
        edges = Edges.of(expansion.first, np.asarray(expansion.successor))
        order = topological_order(expansion.states, edges)
        levels = longest_paths(edges, order) if level_fct is None else given_levels(expansion.states, edges, level_fct)
        return Graph.of(expansion, order, levels, profiles, dtype)


def _dtype(probabilities: object) -> str | None:
    named = {True: "float64", False: None, "float64": "float64", "float32": "float32"}
    if not isinstance(probabilities, (bool, str)) or probabilities not in named:
        raise ValueError(f"probabilities: expected True, False, 'float64' or 'float32', got {came(probabilities)}")
    return named[probabilities]
