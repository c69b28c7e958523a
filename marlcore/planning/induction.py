"""Goal-conditioned soft policies by backward induction: the first phase of planning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from .. import cgroup
from ..checks import came, check_whole, is_number
from ..kernels.backup import Rows
from ..kernels.induction import Belief, Scratch, induce
from .beliefs import Believed, Players, tabulate_belief
from .discounts import Discount, Durations, tabulate_durations
from .goals import Goals, tabulate_goals
from .graph import Graph
from .policies import Policies
from .sweep import Numbers, Progress, sweep
from .tabulate import Tabulate

DTYPES = ("float64", "float32", "float16")


def backward_induction(
    graph: Graph,
    goals: Goals,
    agents: Sequence[int] | None = None,
    *,
    robots: Sequence[int] = (),
    optimistic: bool = False,
    believed: Believed | None = None,
    beta: float = 10.0,
    gamma: float | None = None,
    rho: float | None = None,
    durations: Durations | None = None,
    dtype: str = "float64",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Policies:
    """Computes for each agent and goal how likely the agent achieves the goal, and its soft policy, in every state.

        V = 0 where the state is terminal or the goal achieved; otherwise
        Q(a) = expectation of 1 where the successor achieves the goal, else of e^(-rho D) V(successor)
        pi = softmax(beta Q), V = sum of pi(a) Q(a)

    Where its goal is achieved, an agent takes its first possible action. Actions that no possible profile has are never
    taken. Results are the same to the last bit for any number of workers.

    Args:
        graph: of `build_graph`, with probabilities.
        goals: by agent a sequence of goals; or a function (state, agent) -> (goal, weight) pairs, for goals that depend
            on the state. A goal is a function state -> bool, or has such a method `is_achieved`; it is hashable.
        agents: whose policies are computed; by default, those that have goals.
        robots: agents of whom nothing is believed: each expectation is the least over their actions.
        optimistic: the greatest instead of the least.
        believed: (state, agent, action) -> (probability, profile) pairs: how the others act. The profile's actions of
            the agent and of robots do not matter. By default, all others act at random. What is not possible in a state
            is left out there.
        beta: at least 0; infinity takes the best action, or each of the best ones equally often.
        gamma, rho: the discount of a duration of 1, or its rate -ln(gamma); by default none.
        durations: (state, profile, [(probability, successor), ...]) -> the duration of each outcome; by default 1.
        dtype: of the stored values: float64, float32 or float16; the arithmetic is that of float64.
        workers: threads that share large levels, and processes that evaluate slow functions; by default one for each
            processor. What cannot be pickled is evaluated in this process.
        progress: called with (states done, all states).

    Raises:
        ValueError: an argument is out of range, a state has no goals, or what is believed is no probability
            distribution or not possible; the message names the state.
        CallbackFailed: a function of the caller raised; the message names the state.
        TypeError: a goal cannot be pickled. SharedMemoryFull: no room for the result.
    """
    players = _players(graph, robots, optimistic)
    chosen = _agents(players, goals, agents)
    if not (is_number(beta) and beta >= 0):
        raise ValueError(f"beta: expected a number of at least 0, got {beta!r}")
    if dtype not in DTYPES:
        raise ValueError(f"dtype: expected one of {', '.join(DTYPES)}, got {dtype!r}")
    threads = count_workers(workers)
    tabulate = Tabulate(graph, threads)
    discount = Discount(gamma, rho)
    check_probabilities(graph)
    rows = rows_of(graph, discount, tabulate_durations(tabulate, graph, durations, discount))
    acting = np.diff(graph.row_start) > 0
    tables = {agent: tabulate_goals(tabulate, goals, agent, acting) for agent in chosen}
    beliefs = {agent: tabulate_belief(tabulate, players, agent, believed, acting) for agent in chosen}
    policies = Policies.create(tables, players.actions, dtype)
    try:
        step = _Induction(graph, rows, players, beliefs, policies, float(beta))
        width = sum(len(table.goals) for table in tables.values())
        sweep(graph.levels, work_of(graph, width), threads, step, progress=progress)
    except BaseException:
        policies.close()
        raise
    return policies


class _Induction:
    """The step of the sweep: all agents' values and policies in some states."""

    def __init__(
        self,
        graph: Graph,
        rows: Rows,
        players: Players,
        beliefs: Mapping[int, Belief],
        policies: Policies,
        beta: float,
    ) -> None:
        self._graph, self._rows, self._players, self._beta = graph, rows, players, beta
        self._beliefs = beliefs
        self._arrays = {agent: policies[agent] for agent in beliefs}

    def __call__(self, numbers: Numbers) -> None:
        for agent, belief in self._beliefs.items():
            its, actions = self._arrays[agent], self._players.actions
            goals = len(its.goals)
            scratch = Scratch(
                np.empty((actions, goals)), np.empty(goals), np.empty(goals), np.empty(actions), np.empty(actions)
            )
            place = self._players.place(agent)
            stuck = induce(self._rows, belief, place, self._beta, its.flags, its.stored, its.policy, numbers, scratch)
            if stuck >= 0:
                raise ValueError(
                    f"believed: no profile that agent {agent} believes in is possible in state "
                    f"{came(self._graph.states[stuck])}"
                )


def check_probabilities(graph: Graph) -> None:
    """Raises ValueError: the graph has no probabilities."""
    if graph.probability is None:
        raise ValueError("graph: expected one with probabilities, got one of build_graph(..., probabilities=False)")


def rows_of(graph: Graph, discount: Discount, durations: NDArray[np.float64]) -> Rows:
    """The graph as kernels see it."""
    factors = discount.of_each(durations)
    arrays = graph.row_start, graph.profile, graph.start, graph.successor, graph.probability, factors
    return Rows(*arrays, stride=int(len(factors) > 1), profiles=graph.profiles)


def work_of(graph: Graph, width: int) -> NDArray[np.float64]:
    """The cost of each state for the sweep, with `width` goals."""
    return np.diff(graph.start[graph.row_start]) * float(width) + 1.0


def count_workers(workers: int | None) -> int:
    """Raises ValueError: fewer than one."""
    if workers is None:
        return cgroup.processors()
    check_whole("workers", workers)
    return workers


def _players(graph: Graph, robots: Sequence[int], optimistic: bool) -> Players:
    check_several("robots", "agents", robots)
    for robot in robots:
        check_agent("robots", robot, graph.agents)
    if len({*robots}) < len(robots):
        raise ValueError(f"robots: expected each agent once, got {came([*robots])}")
    return Players(graph.agents, graph.actions, tuple(map(int, robots)), optimistic)


def check_several(label: str, what: str, value: object) -> None:
    """Raises ValueError unless several things can come out of it."""
    if not isinstance(value, Iterable):
        raise ValueError(f"{label}: expected a sequence of {what}, got {came(value)}")


def check_agent(label: str, agent: object, agents: int) -> None:
    """Raises ValueError unless it is the number of one of the agents."""
    if not isinstance(agent, (int, np.integer)) or not 0 <= agent < agents:
        raise ValueError(f"{label}: expected agents from 0 to {agents - 1}, got {came(agent)}")


def _agents(players: Players, goals: Goals, agents: Sequence[int] | None) -> tuple[int, ...]:
    if agents is None:
        if callable(goals):
            raise ValueError("agents: expected the agents whose goals the function gives, got None")
        agents = [*goals]
    check_several("agents", "agents", agents)
    for agent in agents:
        check_agent("agents", agent, players.agents)
        if agent in players.robots:
            raise ValueError(f"agents: expected agents that are no robots, got {agent}")
        if not callable(goals) and agent not in goals:
            raise ValueError(f"goals: expected goals of agent {agent}, got those of {came([*goals])}")
        if not callable(goals):
            check_several("goals", f"goals of agent {agent}", goals[agent])
    if not agents or len({*agents}) < len(agents):
        raise ValueError(f"agents: expected at least one, and each once, got {came([*agents])}")
    return tuple(map(int, agents))
