"""Graphs and backward induction beside plain Python, from 10^2 to 10^6 states: `python -m bench planning`."""

from __future__ import annotations

import argparse
import os
import resource
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from time import perf_counter
from typing import Any

from graph_oracle import graph_lists
from induction_oracle import Induction
from rich.console import Console
from world_models import World

from marlcore.planning import Graph, Policies, backward_induction, build_graph

from ..figures import records
from ..machine import publish
from ..processes import medians, run_fresh

IDLE = True
SIZES = (100, 1_000, 10_000, 100_000, 1_000_000)
MOST_PLAIN = 100_000  # states of the plain version: its lists take 10 KB a state
MEMORY = (1_000_000, 8)  # states and goals
LIMIT = 4 << 30
LEVELS = 20
GAMMA = 0.95


class Mesh(World):
    """At least `states` states, and few more; a profile leads to one of two neighbouring places of the next level."""

    def __init__(self, states: int, cost: float = 0.0) -> None:
        super().__init__(agents=2, actions=4, start=(0, 0))
        # The fewest places a level that let `states` states be reached.
        sizes = range(1, states)
        self._width = 1 + bisect_left(sizes, states, key=lambda n: sum(min(16**i, n) for i in range(LEVELS + 1)))
        self._cost = cost  # seconds that each transition takes

    def transition_probabilities(self, state: Any, profile: Sequence[int]) -> list[tuple[float, Any]] | None:
        level, place = state
        if level == LEVELS:
            return None
        until = perf_counter() + self._cost
        while self._cost and perf_counter() < until:
            pass
        to = place * 16 + 4 * profile[0] + profile[1]
        return [(0.75, (level + 1, to % self._width)), (0.25, (level + 1, (to + 1) % self._width))]


GOALS: Any = {0: [lambda state: state[1] % 97 == 5, lambda state: state[1] % 89 == 3]}


@contextmanager
def planned(model: Mesh, workers: int, goals: Any) -> Iterator[tuple[dict[str, Any], Graph, Policies]]:
    """Builds a graph and plans on it; yields the seconds and bytes of both, and both."""
    began = perf_counter()
    with build_graph(model, workers=workers, progress=False) as graph:
        built = perf_counter()
        with closing(backward_induction(graph, goals, gamma=GAMMA, workers=workers)) as policies:
            took = {"states": len(graph), "build_s": built - began, "induce_s": perf_counter() - built}
            yield {**took, "graph_bytes": graph.nbytes, "policy_bytes": policies.nbytes}, graph, policies


def measure(states: int, cost: float, workers: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """Builds a graph and plans on it, the sides by turns; asserts that all results are equal. A record a side."""
    model, results = Mesh(states, cost), set()
    taken: dict[str, list[dict[str, Any]]] = {}  # by side
    if states <= MOST_PLAIN:
        began = perf_counter()
        lists, agents = graph_lists(model), len(model.agents)
        built = perf_counter()
        plain = Induction(lists.states, lists.transitions, agents, model.action_space.n, GOALS, gamma=GAMMA).values[0]
        taken["plain"] = [{"build_s": built - began, "induce_s": perf_counter() - built}]
    for count in [*workers] * rounds:
        with planned(model, count, GOALS) as (took, graph, policies):
            taken.setdefault(str(count), []).append(took)
            results.add((graph.successor.tobytes(), policies[0].values.tobytes()))
            assert states > MOST_PLAIN or policies[0].values.T.tolist() == plain
    assert len(results) == 1, "the number of workers changed a result"
    sides: list[dict[str, Any]] = []
    for name, of_side in taken.items():
        record = {"seconds_a_transition": cost, "workers": name, **took, **medians(of_side)}
        record["states_per_s"] = took["states"] / record["build_s"]
        record["values_per_s"] = took["states"] * len(GOALS[0]) / record["induce_s"]
        if "plain" in taken:
            first = sides[0] if sides else record
            record |= {f"{part}_times": first[part] / record[part] for part in ("build_s", "induce_s")}
        sides.append(record)
    return sides


def plan_alone(states: int, goals: int) -> dict[str, float]:
    """Only builds a graph and plans on it; returns the peak memory of this process in bytes, and the seconds."""
    predicates = [lambda state, i=i: state[1] % 97 == i for i in range(goals)]
    with planned(Mesh(states), 1, {0: predicates}) as (took, _, _):
        return {**took, "goals": goals, "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def main(options: argparse.Namespace) -> None:
    workers = [count for count in (1, 2, 4, 8, 16) if count <= len(os.sched_getaffinity(0))]
    with Console().status("measuring") as status:
        measure(100, 0.0, workers, 1)  # compiles or loads the kernels
        tables = []
        for states, cost in [*((states, 0.0) for states in SIZES), (5_000, 1e-4)]:
            status.update(f"{states:,} states")
            tables.append(records(measure(states, cost, workers, rounds=3 if states < MEMORY[0] else 1)))
        status.update("memory")
        memory = run_fresh(plan_alone, *MEMORY)
    within = f"\n{'within' if memory['peak_bytes'] <= LIMIT else 'beyond'} {LIMIT >> 30} GiB"
    publish(options, "\n".join([*tables, records([memory])]) + within)
