"""Graphs and backward induction beside plain Python, from 10^2 to 10^6 states: `python -m bench.planning`."""

from __future__ import annotations

import argparse
import os
import resource
import sys
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from rich.console import Console
from rich.table import Table

from marlcore.planning import backward_induction, build_graph

from .fresh import run_fresh
from .machine import describe_machine, parse_if_idle, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from graph_oracle import graph_lists
from induction_oracle import Induction

SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
MOST_PLAIN = 100_000  # states of the plain version: its lists take 10 KB a state
MEMORY = (1_000_000, 8)  # states and goals
LIMIT = 4 << 30
LEVELS = 20
GAMMA = 0.95


class Mesh:
    """At least so many states, and few more; a profile leads to one of two neighbouring places of the next level."""

    agents = (0, 1)
    action_space = SimpleNamespace(n=4)

    def __init__(self, states: int, cost: float = 0.0) -> None:
        # The least number of places in a level for which so many states can be reached.
        sizes = range(1, states)
        self._width = 1 + bisect_left(sizes, states, key=lambda n: sum(min(16**i, n) for i in range(LEVELS + 1)))
        self._cost = cost  # seconds that each transition takes

    def reset(self) -> None: ...

    def get_state(self) -> tuple[int, int]:
        return (0, 0)

    def set_state(self, state: tuple[int, int]) -> None: ...

    def transition_probabilities(self, state: Any, profile: Sequence[int]) -> list[tuple[float, Any]] | None:
        level, place = state
        if level == LEVELS:
            return None
        if self._cost:
            until = perf_counter() + self._cost
            while perf_counter() < until:
                pass
        to = place * 16 + 4 * profile[0] + profile[1]
        return [(0.75, (level + 1, to % self._width)), (0.25, (level + 1, (to + 1) % self._width))]


GOALS: Any = {0: [lambda state: state[1] % 97 == 5, lambda state: state[1] % 89 == 3]}


@dataclass
class Figures:
    """Median seconds by workers, "plain" for plain Python, and the bytes of both results."""

    states: int
    cost: float
    build: dict[str, float] = field(default_factory=dict)
    induce: dict[str, float] = field(default_factory=dict)
    graph_bytes: int = 0
    policy_bytes: int = 0


def measure(states: int, cost: float, workers: Sequence[int], rounds: int) -> Figures:
    """Builds a graph and plans on it, the sides by turns; asserts that all results are equal."""
    model, figures = Mesh(states, cost), Figures(states, cost)
    plain = plain_side(model, figures) if states <= MOST_PLAIN else None
    times: dict[str, list[tuple[float, float]]] = {str(count): [] for count in workers}
    results = set()
    for _ in range(rounds):
        for count in workers:
            began = perf_counter()
            with build_graph(model, workers=count, progress=False) as graph:
                built = perf_counter()
                with closing(backward_induction(graph, GOALS, gamma=GAMMA, workers=count)) as policies:
                    times[str(count)].append((built - began, perf_counter() - built))
                    results.add((graph.successor.tobytes(), policies[0].values.tobytes()))
                    figures.states = len(graph)
                    figures.graph_bytes, figures.policy_bytes = graph.nbytes, policies.nbytes
                    if plain is not None:
                        assert policies[0].values.T.tolist() == plain
    assert len(results) == 1, "the number of workers changed a result"
    for name, pairs in times.items():
        figures.build[name], figures.induce[name] = (median(seconds) for seconds in zip(*pairs, strict=True))
    return figures


def plain_side(model: Mesh, figures: Figures) -> list[list[float]]:
    """Measures plain Python once; returns its values."""
    began = perf_counter()
    lists = graph_lists(model)
    built = perf_counter()
    planned = Induction(lists.states, lists.transitions, len(model.agents), model.action_space.n, GOALS, gamma=GAMMA)
    figures.build["plain"], figures.induce["plain"] = built - began, perf_counter() - built
    values: list[list[float]] = planned.values[0]
    return values


def measure_memory(states: int, goals: int) -> dict[str, float]:
    """The peak memory of a process that builds a graph alone and plans on it, in bytes, and its seconds."""
    return run_fresh(_plan_alone, states, goals)


def _plan_alone(states: int, goals: int) -> dict[str, float]:
    began = perf_counter()
    predicates = [lambda state, i=i: state[1] % 97 == i for i in range(goals)]
    with build_graph(Mesh(states), workers=1, progress=False) as graph:
        built = perf_counter()
        with backward_induction(graph, {0: predicates}, gamma=GAMMA, workers=1) as policies:
            planned = perf_counter()
            peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            return {
                "states": len(graph), "goals": goals, "build_s": built - began, "induce_s": planned - built,
                "peak_bytes": peak, "graph_bytes": graph.nbytes, "policy_bytes": policies.nbytes,
            }  # fmt: skip


def rates_table(title: str, figures: Sequence[Figures], part: str, goals: int) -> Table:
    """Rates, and how many times the plain version's they are."""
    sides = list(dict.fromkeys(name for sizes in figures for name in getattr(sizes, part)))
    sides.sort(key=lambda name: (name != "plain", name != "plain" and int(name)))
    table = Table(title=title, show_edge=False)
    for name in ("states", "us a transition", *(f"{side} workers" if side != "plain" else side for side in sides)):
        table.add_column(name, justify="right", no_wrap=True)
    for row in figures:
        cells = [_cell(row.states * goals, getattr(row, part), side) for side in sides]
        table.add_row(f"{row.states:,}", f"{row.cost * 1e6:.0f}", *cells)
    return table


def _cell(amount: int, seconds: dict[str, float], side: str) -> str:
    if side not in seconds:
        return ""
    rate = f"{amount / seconds[side]:,.0f}"
    return rate if side == "plain" or "plain" not in seconds else f"{rate} x {seconds['plain'] / seconds[side]:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.planning", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--states", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=3)
    options = parse_if_idle(parser)
    workers = [count for count in (1, 2, 4, 8, 16) if count <= len(os.sched_getaffinity(0))]
    machine = describe_machine()
    with Console().status("measuring") as status:
        measure(100, 0.0, workers, 1)  # compiles or loads the kernels
        figures = []
        for states, cost in [*((states, 0.0) for states in options.states), (5_000, 1e-4)]:
            status.update(f"{states:,} states")
            figures.append(measure(states, cost, workers, options.rounds if states < MEMORY[0] else 1))
        status.update("memory")
        memory = measure_memory(*MEMORY)
    parts = (
        rates_table("graph building, states/s, and how many times plain Python's", figures, "build", 1),
        rates_table("backward induction, 2 goals, values/s, and the same", figures, "induce", 2),
        f"bytes a state: {figures[-2].graph_bytes / figures[-2].states:,.0f} of the graph, "
        f"{figures[-2].policy_bytes / figures[-2].states:,.0f} of values and policies for 2 goals",
        f"{memory['states']:,} states x {memory['goals']} goals: {memory['build_s']:.1f} s to build, "
        f"{memory['induce_s']:.1f} s to plan, {memory['peak_bytes'] / 2**30:.2f} GiB at most, "
        f"{'within' if memory['peak_bytes'] <= LIMIT else 'beyond'} {LIMIT >> 30} GiB",
    )
    publish(machine, parts, 120, options.json, figures=[asdict(sizes) for sizes in figures], memory=memory)


if __name__ == "__main__":
    main()
