"""The robots' policy among people whose policies are known: the second phase of planning."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..declared import Number
from .batches import count_workers
from .discounts import Discount, Durations, discounted_rows
from .graph import Graph
from .induction import BETA
from .kernels.expectations import OFFERED, GraphArrays
from .kernels.robot_policies import People, attain, choose, mix
from .policies import AgentPolicies, Policies
from .sweep import Numbers, Progress, sweep, work_of
from .tabulate import Tabulate

Floats = NDArray[np.float64]
# (attainable probabilities, goals' weights), each by agent: float64 [n, goals] -> the robots' rewards, float64 [n]
Aggregate = Callable[[Mapping[int, Floats], Mapping[int, Floats]], Floats]


@dataclass(frozen=True)
class RobotPolicy:
    """The robots' policy and value.

    Attributes:
        robots: the robots' agent numbers, ascending. The robots act as one.
        values: float64 [states].
        policy: float64 [states, profiles]. With n actions, the robots' profile (a_0, a_1, a_2, ...) has the number
            a_0 + a_1 n + a_2 n^2 + ... Zero in terminal states.
        attainable: maps each person to float64 [states, goals]: the discounted probability of achieving a goal if the
            person pursues it and the others act by the mean of their policies. Zero in terminal states.
    """

    robots: tuple[int, ...]
    values: Floats
    policy: Floats
    attainable: dict[int, Floats]


def robot_induction(
    graph: Graph,
    people: Policies,
    aggregate: Aggregate,
    *,
    beta: float = 10.0,
    power: bool = False,
    terminal: float = 0.0,
    gamma: float | None = None,
    rho: float | None = None,
    people_gamma: float | None = None,
    people_rho: float | None = None,
    durations: Durations | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
) -> RobotPolicy:
    """Computes the policy by which robots (the agents without a policy in `people`) help people attain their goals.

        Q(r) = expectation of e^(-rho D) V(successor)
        pi = softmax(beta Q)
        V = sum of pi(r) Q(r) + aggregate(what people can attain under pi)

    People act by the mean of their policies over goals.

    Args:
        graph: the graph for which `people` were computed.
        people: the people's policies, from `backward_induction`.
        aggregate: called once for each level, for n states, with what people can attain and with the goals' weights:
            two dicts from agent to float64 [n, goals], zero for goals that are not on offer. Returns the robots'
            rewards in these states, finite numbers [n].
        beta: as in `backward_induction`.
        power: pi is proportional to (-Q)^-beta instead; every Q must be negative.
        terminal: the value of terminal states.
        gamma, rho: the robots' discount. people_gamma, people_rho: the people's.
        durations, workers, progress: as in `backward_induction`.

    Raises:
        ValueError: an argument is out of range, `people` belongs to another graph, or, with `power`, a Q is not
            negative.
    """
    robots = tuple(i for i in range(graph.agents) if i not in people.agents)
    if not robots:
        raise ValueError("people: expected at least one agent to be a robot, got policies of all agents")
    beta, terminal = BETA("beta", beta), Number()("terminal", terminal)
    policies = {person: people[person] for person in people.agents}
    states, _, actions = policies[people.agents[0]].policy.shape
    if (states, actions) != (len(graph), graph.actions) or max(people.agents) >= graph.agents:
        expected = f"{len(graph)} states and {graph.actions} actions, of agents below {graph.agents}"
        raise ValueError(f"people: expected policies in {expected}, got another graph's policies")
    threads = count_workers(workers)
    discounts = Discount(gamma, rho), Discount(people_gamma, people_rho)
    rows, people_rows = discounted_rows(Tabulate(graph, threads), durations, *discounts)
    result = RobotPolicy(
        robots,
        np.full(len(graph), float(terminal)),
        np.zeros((len(graph), graph.actions ** len(robots))),
        {person: np.zeros(arrays.flags.shape) for person, arrays in policies.items()},
    )
    places, others = (np.array([graph.actions**i for i in agents], np.int64) for agents in (people.agents, robots))
    mixed = People(np.zeros((len(policies), len(graph), graph.actions)), places, others)
    step = _RobotInduction(graph, rows, people_rows, mixed, policies, result, aggregate, float(beta), power)
    width = sum(len(arrays.goals) for arrays in policies.values()) + 1
    sweep(graph.levels, work_of(graph, width), threads, step, step.add_rewards, progress)
    return result


@dataclass(frozen=True)
class _RobotInduction:
    """The sweep's step: computes the robots' policy in some states, and what people can attain under it."""

    graph: Graph
    rows: GraphArrays
    people_rows: GraphArrays  # with the people's discount
    people: People
    policies: Mapping[int, AgentPolicies]  # the people's
    result: RobotPolicy
    aggregate: Aggregate
    beta: float
    power: bool

    def __call__(self, numbers: Numbers) -> None:
        for mixed, arrays in zip(self.people.policy, self.policies.values(), strict=True):
            mix(arrays.flags, arrays.weights, arrays.policy, numbers, mixed)
        result, scratch = self.result, (np.empty(self.result.policy.shape[1]) for _ in range(3))
        stuck = choose(self.rows, self.people, self.beta, self.power, result.values, result.policy, numbers, *scratch)
        if stuck >= 0:
            where = f"in state {brief(self.graph.states[stuck])}"
            if self.power:
                raise ValueError(f"power: expected the robots' Q to be negative, got a Q of at least 0 {where}")
            raise ValueError(f"people: expected policies under which a profile is possible {where}")
        for person, (agent, arrays) in enumerate(self.policies.items()):
            memory = tuple(np.empty(len(arrays.goals)) for _ in range(3))
            of_person = arrays.policy, arrays.flags, result.attainable[agent]
            attain(self.people_rows, self.people, person, result.policy, *of_person, numbers, memory)

    def add_rewards(self, numbers: Numbers) -> None:
        acting = numbers[self.graph.row_start[numbers + 1] > self.graph.row_start[numbers]]
        if not len(acting):
            return
        attainable = {agent: values[acting] for agent, values in self.result.attainable.items()}
        weights = {
            agent: np.where(arrays.flags[acting] & OFFERED > 0, arrays.weights[acting], 0.0)
            for agent, arrays in self.policies.items()
        }
        rewards = np.asarray(self.aggregate(attainable, weights), float)
        if rewards.shape != acting.shape:
            raise ValueError(f"aggregate: expected numbers of shape {acting.shape}, got shape {rewards.shape}")
        wrong = ~np.isfinite(rewards)  # infinity times a probability of 0 would be NaN
        if wrong.any():
            state = self.graph.states[acting[wrong.argmax()]]
            raise ValueError(f"aggregate: expected finite numbers, got {rewards[wrong][0]} in state {brief(state)}")
        self.result.values[acting] += rewards
