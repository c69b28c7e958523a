"""Builds a world model's graph: enumerates the states, orders them, and writes them to one segment."""

import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from .. import cgroup
from ..checks import brief, check_whole
from ..declared import Number
from ..errors import NotEnoughMemory, suppress_failed_calls
from ..notices import shown_with
from .batches import count_workers
from .exploration import Exploration
from .graph import Graph
from .model import Profiles, WorldModel

FRAME_S = 0.25
MEMINFO = Path("/proc/meminfo")
_MIB = 1 << 20
_ORDERED = 120  # bytes that a state takes while it is ordered, besides its transitions: measured
_SMALL = _MIB  # fewer bytes are not checked, since a check takes a quarter of a millisecond


def build_graph(
    model: WorldModel,
    *,
    workers: int | None = None,
    probabilities: bool | Literal["float32", "float64"] = True,
    batch: int | None = None,
    progress: bool = True,
    level_fct: Callable[[Any], int] | None = None,
    min_free_memory_fraction: float = 0.1,
    fork: bool | None = None,
) -> Graph:
    """Builds the graph of all states that the model can reach from its initial state.

    The graph is the same, to the last bit, for any number of workers, even if a worker is killed, provided that the
    model is deterministic; to check that, this process expands a sample of at most 32 states again at the end.
    Afterwards the model is in its initial state.

    Args:
        model: see WorldModel. Workers get copies; code that another process cannot import is pickled by value.
        workers: processes that expand states, this one included; None: one for each processor that this process may
            use. The other processes start after 0.05 s, if the graph is not complete by then, and get states only where
            that saves time. With 1, only the states are pickled.
        probabilities: False leaves them out of the graph; True means "float64".
        batch: states that a worker gets at a time; if given, the workers start at once for any graph. None: as
            many as take 50 ms.
        progress: show a line on standard error, if that is a terminal.
        level_fct: returns a state's level, an integer that every transition lowers, or every transition raises. None:
            the level is the number of transitions on the longest path to a terminal state.
        min_free_memory_fraction: the share of the machine's memory, and of this process's memory limit, to keep free.
            With 0, memory is not checked.
        fork: True: workers are forks of this process, which start in 0.03 s with all its imports. False: workers are
            forks of a new program, which imports the modules that the model needs. None: True if this process has no
            other Python thread, no native thread with a name of its own, no running Numba threads and no open GPU.

    Raises:
        ValueError: the transitions have a cycle, probabilities are negative or do not sum to 1, there are more than
            2^31 profiles, the model answers differently when asked again, `level_fct` contradicts the graph, or an
            argument is out of range.
        TypeError: a state is not hashable; the model or a state cannot be pickled, or pickling changes it.
        WorldModelFailed: the model raised. WorkerFailed: four workers died of the same states.
        NotEnoughMemory, SharedMemoryFull: no room for the graph.
    """
    dtype, watch = _dtype(probabilities), Watch(min_free_memory_fraction, progress)
    workers = count_workers(workers)
    if batch is not None:
        check_whole("batch", batch)
    if fork is not None and not isinstance(fork, bool):
        raise ValueError(f"fork: expected True, False or None, got {brief(fork)}")
    profiles = Profiles(len(model.agents), model.action_space.n)
    root = _initial_state(model)
    with shown_with(progress):
        with closing(watch):
            expansion = Exploration(model, profiles, root, workers, batch, fork).run(watch.look)
        expansion.check_repeats(model.transition_probabilities, profiles)
        model.set_state(root)
        states = len(expansion.states)
        watch.check_memory(states, expansion.nbytes + _ORDERED * states)
        return Graph.of(expansion, profiles, dtype, level_fct, watch.check_memory)


def _initial_state(model: WorldModel) -> Any:
    model.reset()
    root = model.get_state()
    try:
        hash(root)
    except TypeError:
        raise TypeError(f"state: expected something hashable, got {brief(root)}, the initial state") from None
    return root


def _dtype(probabilities: object) -> str | None:
    named = {True: "float64", False: None, "float64": "float64", "float32": "float32"}
    if not isinstance(probabilities, (bool, str)) or probabilities not in named:
        raise ValueError(f"probabilities: expected True, False, 'float64' or 'float32', got {brief(probabilities)}")
    return named[probabilities]


class Watch:
    """Shows progress, and raises an error before the memory is full, so that the kernel does not kill the process.

    The progress is a line on standard error, rewritten in place, if that is a terminal.
    """

    def __init__(self, fraction: float, progress: bool) -> None:
        self._fraction = Number(0, below=1)("min_free_memory_fraction", fraction)
        self._stream = sys.stderr if progress and sys.stderr is not None and sys.stderr.isatty() else None
        self._began = monotonic()
        self._due = self._began + FRAME_S
        self._shown = False

    def look(self, expanded: int, discovered: int) -> None:
        """Checks memory and shows progress, at most four times a second. Raises NotEnoughMemory; see `check_memory`."""
        now = monotonic()
        if now < self._due:
            return
        self._due = now + FRAME_S
        self.check_memory(discovered)
        rate = expanded / max(now - self._began, 1e-9)
        self._write(f"\rmarlcore: {expanded:,} states expanded of {discovered:,} found so far, {rate:,.0f} states/s ")
        self._shown = True

    def check_memory(self, states: int, nbytes: int = 0) -> None:
        """Raises NotEnoughMemory if too little memory would stay free after allocating `nbytes` more."""
        if not self._fraction or 0 < nbytes < _SMALL:
            return
        for whose, free, total in _memory():
            if free - nbytes < self._fraction * total:
                more = f"after allocating {nbytes // _MIB} MiB more " if nbytes else ""
                raise NotEnoughMemory(
                    f"min_free_memory_fraction: expected {self._fraction:g} of {whose} ({total // _MIB} MiB) to stay "
                    f"free {more}at {states} states, got {free // _MIB} MiB free"
                )

    def close(self) -> None:
        if self._shown:
            self._write("\n")

    def _write(self, text: str) -> None:
        if self._stream is not None:
            with suppress_failed_calls():  # the terminal was closed
                self._stream.write(text)
                self._stream.flush()


def _memory() -> list[tuple[str, int, int]]:
    lines = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    free, total = (1024 * int(lines[name].split()[0]) for name in ("MemAvailable", "MemTotal"))
    limit = cgroup.memory_limit()
    return [("the machine's memory", free, total)] + ([("the memory limit", limit.left, limit.limit)] if limit else [])
