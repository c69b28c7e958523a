"""Goals of an agent in arrays: which are on offer in which state, with which weight, and where each is achieved."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..checks import came
from ..kernels.backup import ACHIEVED, OFFERED
from .graph import Graph
from .tabulate import Numbers, Tabulate, naming, stays_equal

Goal = Any  # goal.is_achieved(state), or goal(state) where it has no such method
GoalGenerator = Callable[[Any, int], Iterable[tuple[Goal, float]]]  # (state, agent) -> (goal, weight) pairs
Goals = Mapping[int, Sequence[Goal]] | GoalGenerator


@dataclass(frozen=True)
class GoalTable:
    """One agent's goals.

    Attributes:
        goals: in the order in which the states, by their numbers, offer them first.
        flags: uint8 [states, goals], OFFERED and ACHIEVED.
        weight: float64 [states, goals], or [1, goals] if all states offer all goals with the same weights.
    """

    goals: list[Goal]
    flags: NDArray[np.uint8]
    weight: NDArray[np.float64]


def tabulate_goals(tabulate: Tabulate, goals: Goals, agent: int, acting: NDArray[np.bool_]) -> GoalTable:
    """Evaluates an agent's goals once in each state.

    Args:
        tabulate: evaluates in each state, perhaps in other processes.
        acting: bool [states], where agents act; nothing is asked of the generator elsewhere.

    Raises: ValueError: a state offers no goal, or a weight is negative or no number.
    """
    if callable(goals):
        job, numbers = _Offers(goals, agent), np.flatnonzero(acting).tolist()
        first = job(tabulate.graph, numbers[:1]).goals
        # A goal that another process would return as a different one must come from here.
        offers = (tabulate if all(map(stays_equal, first)) else tabulate.here)(job, numbers)
        found, offered, weight = _gather(offers, acting)
    else:
        found = [*goals[agent]]
        if not found:
            raise ValueError(f"goals: expected at least one goal of agent {agent}, got none")
        offered = np.broadcast_to(acting[:, None], (len(acting), len(found)))
        weight = np.full((1, len(found)), 1.0 / len(found))
    achieved = tabulate(_Achieved(found), range(len(acting)))
    flags = np.concatenate(achieved) * np.uint8(ACHIEVED)
    flags |= offered * np.uint8(OFFERED)
    return GoalTable(found, flags, weight)


@dataclass(frozen=True)
class _Achieved:
    """Whether states achieve goals: uint8 [numbers, goals], 0 or 1."""

    goals: list[Goal]

    def __call__(self, graph: Graph, numbers: Numbers) -> NDArray[np.uint8]:
        states = [graph.states[i] for i in numbers]
        found = np.empty((len(states), len(self.goals)), np.uint8)
        for i, goal in enumerate(self.goals):
            results: list[bool] = []
            with naming(f"goal {came(goal)}", states, results):
                results.extend(map(bool, map(getattr(goal, "is_achieved", goal), states)))
            found[:, i] = results
        return found


class _Offer(NamedTuple):
    """What states offer.

    Attributes:
        goals: in the order in which the states offer them first.
        counts: int64 [states], how many goals each offers.
        columns, weights: [offers], each one's number among the goals, and its weight.
    """

    goals: list[Goal]
    counts: NDArray[np.int64]
    columns: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class _Offers:
    """What a generator offers in states."""

    generate: GoalGenerator
    agent: int

    def __call__(self, graph: Graph, numbers: Numbers) -> _Offer:
        states = [graph.states[i] for i in numbers]
        said: list[list[tuple[Goal, float]]] = []
        with naming(f"the goal generator of agent {self.agent}", states, said):
            said.extend(map(self._ask, states))
        number: dict[Goal, int] = {}
        columns, weights = [], []
        for state, pairs in zip(states, said, strict=True):
            self._check(state, pairs)
            columns += [number.setdefault(goal, len(number)) for goal, _ in pairs]
            weights += [weight for _, weight in pairs]
        counts = np.array([len(pairs) for pairs in said], np.int64)
        return _Offer([*number], counts, np.array(columns, np.int64), np.array(weights))

    def _ask(self, state: Any) -> list[tuple[Goal, float]]:
        pairs = [(goal, float(weight)) for goal, weight in self.generate(state, self.agent)]
        for goal, _ in pairs:
            hash(goal)  # a goal that is not hashable is the generator's error
        return pairs

    def _check(self, state: Any, pairs: list[tuple[Goal, float]]) -> None:
        if not pairs:
            raise ValueError(
                f"goals: expected at least one goal of agent {self.agent} in state {came(state)}, got none"
            )
        for goal, weight in pairs:
            if not 0 <= weight < math.inf:
                raise ValueError(
                    f"goals: expected a finite weight of at least 0 of goal {came(goal)} in state {came(state)}, "
                    f"got {weight!r}"
                )


def _gather(
    offers: list[_Offer], acting: NDArray[np.bool_]
) -> tuple[list[Goal], NDArray[np.bool_], NDArray[np.float64]]:
    """The goals of all states together, where each is on offer, and its weights there."""
    number: dict[Goal, int] = {}
    columns = [np.array([number.setdefault(goal, len(number)) for goal in one.goals])[one.columns] for one in offers]
    counts = np.concatenate([np.zeros(0, np.int64), *(one.counts for one in offers)])
    places = np.repeat(np.flatnonzero(acting), counts), np.concatenate([np.zeros(0, np.int64), *columns])
    offered, weight = np.zeros((len(acting), len(number)), bool), np.zeros((len(acting), len(number)))
    offered[places] = True
    np.add.at(weight, places, np.concatenate([np.zeros(0), *(one.weights for one in offers)]))
    return [*number], offered, weight
