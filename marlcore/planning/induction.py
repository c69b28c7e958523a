"""Goal-conditioned soft policies by backward induction: the first phase of planning."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import numpy as np

from ..checks import brief
from ..closing import ClosedAfterError
from ..declared import Number, choice
from .batches import count_workers
from .beliefs import Believed, tabulate_belief
from .discounts import Discount, Durations, discounted_rows
from .goals import Goals, tabulate_goals
from .graph import Graph
from .kernels.expectations import GraphArrays
from .kernels.soft_policies import Belief, Scratch, induce
from .policies import Policies
from .sweep import Numbers, Progress, sweep, work_of
from .tabulate import Tabulate

DTYPES = ("float64", "float32", "float16")
BETA = Number(0, finite=False)


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
    policy_dtype: str | None = None,
    sums: str = "float64",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Policies:
    """Computes, in every state and for each agent and goal, how likely the agent achieves the goal, and a soft policy.

        V = 0 where the state is terminal or the goal achieved; otherwise
        Q(a) = expectation of 1 where the successor achieves the goal,
               else of e^(-rho D) V(successor), D being the transition's duration
        pi = softmax(beta Q), V = sum of pi(a) Q(a)

    In a state that achieves the goal, the agent takes its first possible action. It never takes an action without
    possible profiles. Results are the same to the last bit for any number of workers.

    Args:
        graph: a graph of `build_graph`, with probabilities.
        goals: maps agents to sequences of goals; or a function (state, agent) -> (goal, weight) pairs, for goals that
            depend on the state. A goal is hashable: a function state -> bool, or an object with such a method
            `is_achieved`.
        agents: the agents whose policies are computed; by default, those that have goals.
        robots: agents whose actions get no probabilities: an expectation is the minimum over the robots' actions.
        optimistic: use the maximum over the robots' actions instead of the minimum.
        believed: (state, agent, action) -> (probability, profile) pairs: how the others act. In a profile, the actions
            of the agent itself and of robots do not matter. By default, all others act at random. In each state,
            profiles that are not possible are left out.
        beta: at least 0; infinity takes the best action, or each of the best ones equally often: those whose Q is less
            than the best by at most a relative 1e-12, as the rounding of equal sums may be.
        gamma, rho: the discount of a duration of 1, or its rate -ln(gamma); by default none.
        durations: (state, profile, [(probability, successor), ...]) -> the duration of each outcome; by default 1.
        dtype: of the stored values: float64, float32 or float16.
        policy_dtype: of the stored policies: float64 or float32; by default float64, or float32 with narrower values.
        sums: the dtype in which Q is summed: float64, or float16 as NumPy sums arrays of float16.
        workers: threads that share large levels, and processes that evaluate slow functions; by default one for each
            processor. Functions that cannot be pickled stay in this process.
        progress: called with (states done, all states).

    Raises:
        ValueError: an argument is out of range, a state has no goals, or beliefs are no probability distribution or
            have no possible profile; the message names the state.
        CallbackFailed: a function of the caller raised; the message names the state.
        TypeError: a goal cannot be pickled. SharedMemoryFull: no room for the result.
    """
    robots = _numbers("robots", robots, graph)
    chosen = _checked_agents(agents, goals, robots, graph)
    beta = BETA("beta", beta)
    policy_dtype = policy_dtype or ("float64" if dtype == "float64" else "float32")
    choice(DTYPES, "dtype", dtype)
    choice(DTYPES[:2], "policy_dtype", policy_dtype)
    choice(DTYPES[::2], "sums", sums)
    threads = count_workers(workers)
    tabulate = Tabulate(graph, threads)
    [rows] = discounted_rows(tabulate, durations, Discount(gamma, rho))
    acting = np.diff(graph.row_start) > 0
    tables = {agent: tabulate_goals(tabulate, goals, agent, acting) for agent in chosen}
    beliefs = {agent: tabulate_belief(tabulate, agent, robots, optimistic, believed, acting) for agent in chosen}
    policies = Policies.create(tables, graph.actions, dtype, policy_dtype)
    step = partial(_induce, graph, rows, beliefs, policies, float(beta), sums)
    with ClosedAfterError(policies):
        width = sum(len(table.goals) for table in tables.values())
        sweep(graph.levels, work_of(graph, width), threads, step, progress=progress)
    return policies


def _induce(
    graph: Graph,
    rows: GraphArrays,
    beliefs: Mapping[int, Belief],
    policies: Policies,
    beta: float,
    sums: str,
    numbers: Numbers,
) -> None:
    """Computes the agents' values and policies in the states `numbers`. Raises ValueError for impossible beliefs."""
    actions = graph.actions
    for agent, belief in beliefs.items():
        arrays = policies[agent]
        width = len(arrays.goals)
        total = np.empty(width, np.float32 if sums == "float16" else np.float64)
        q, extreme, mass, chosen = (np.empty(shape) for shape in ((actions, width), width, actions, actions))
        scratch = Scratch(q, total, extreme, mass, chosen)
        of_agent = arrays.flags, arrays.stored, arrays.policy
        stuck = induce(rows, belief, actions**agent, beta, *of_agent, numbers, scratch)
        if stuck >= 0:
            expected = f"believed: no profile that agent {agent} believes in is possible in state"
            raise ValueError(f"{expected} {brief(graph.states[stuck])}")


def _checked_agents(agents: Sequence[int] | None, goals: Goals, robots: Sequence[int], graph: Graph) -> tuple[int, ...]:
    if agents is None:
        if callable(goals):
            raise ValueError("agents: expected the agents whose goals the function gives, got None")
        agents = [*goals]
    numbers = _numbers("agents", agents, graph)
    if not numbers:
        raise ValueError("agents: expected at least one agent, got none")
    for agent in numbers:
        if agent in robots:
            raise ValueError(f"agents: expected agents that are no robots, got {agent}")
        if not callable(goals) and agent not in goals:
            raise ValueError(f"goals: expected goals of agent {agent}, got goals of the agents {brief([*goals])}")
        if not callable(goals) and not isinstance(goals[agent], Iterable):
            raise ValueError(f"goals: expected a sequence of goals of agent {agent}, got {brief(goals[agent])}")
    return numbers


def _numbers(label: str, agents: Sequence[int], graph: Graph) -> tuple[int, ...]:
    if not isinstance(agents, Iterable):
        raise ValueError(f"{label}: expected a sequence of agents, got {brief(agents)}")
    for agent in agents:
        if not isinstance(agent, (int, np.integer)) or not 0 <= agent < graph.agents:
            raise ValueError(f"{label}: expected agents from 0 to {graph.agents - 1}, got {brief(agent)}")
    if len({*agents}) < len(agents):
        raise ValueError(f"{label}: expected each agent once, got {brief([*agents])}")
    return tuple(map(int, agents))
