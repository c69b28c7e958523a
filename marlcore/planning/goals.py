"""Tabulates an agent's goals: which states offer each goal, with which weight, and which states achieve it."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from .batches import stays_equal
from .graph import Graph
from .kernels.expectations import ACHIEVED, OFFERED
from .tabulate import Job, Numbers, Tabulate, answers

Goal = Any  # goal.is_achieved(state), or goal(state) where it has no such method
GoalGenerator = Callable[[Any, int], Iterable[tuple[Goal, float]]]  # (state, agent) -> (goal, weight) pairs
Goals = Mapping[int, Sequence[Goal]] | GoalGenerator


@dataclass(frozen=True)
class GoalTable:
    """The goals of one agent, and the states that offer or achieve each goal."""

    goals: list[Goal]  # in the order of the first states that offer them
    flags: NDArray[np.uint8]  # [states, goals], OFFERED and ACHIEVED
    weight: NDArray[np.float64]  # [states, goals], or [1, goals] if all states offer all goals with the same weights


def tabulate_goals(tabulate: Tabulate, goals: Goals, agent: int, acting: NDArray[np.bool_]) -> GoalTable:
    """Evaluates an agent's goals once in each state; calls a goal generator where `acting`, bool [states], is True."""
    offered: NDArray[Any]
    if callable(goals):
        job, numbers = partial(_offers, goals, agent), np.flatnonzero(acting).tolist()
        # If a pickled copy of a goal differs from the goal, only this process generates goals.
        stay_equal = all(map(stays_equal, job(tabulate.graph, numbers[:1])[0]))
        offers = tabulate(partial(_offers_to_send, job), numbers) if stay_equal and tabulate.workers > 1 else [None]
        known = [batch for batch in offers if batch is not None]
        if len(known) < len(offers):
            known = Tabulate(tabulate.graph, 1)(job, numbers)
        goals_of_agent, offered, weight = _join([job(tabulate.graph, []), *known], len(acting))
    else:
        goals_of_agent = [*goals[agent]]
        if not goals_of_agent:
            raise ValueError(f"goals: expected at least one goal of agent {agent}, got none")
        offered = acting[:, None]
        weight = np.full((1, len(goals_of_agent)), 1.0 / len(goals_of_agent))
    flags = np.concatenate(tabulate(partial(_achieved, goals_of_agent), range(len(acting)))) * np.uint8(ACHIEVED)
    flags |= offered * np.uint8(OFFERED)
    return GoalTable(goals_of_agent, flags, weight)


def _achieved(goals: list[Goal], graph: Graph, numbers: Numbers) -> NDArray[np.uint8]:
    states = [graph.states[i] for i in numbers]
    achieved = np.empty((len(states), len(goals)), np.uint8)
    for i, goal in enumerate(goals):
        calls = map(bool, map(getattr(goal, "is_achieved", goal), states))
        achieved[:, i] = answers(f"goal {brief(goal)}", states, calls)
    return achieved


_Offers = tuple[list[Goal], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def _offers(generate: GoalGenerator, agent: int, graph: Graph, numbers: Numbers) -> _Offers:
    """Returns the goals in the order of their first offers, and each offer's state, goal index and weight."""

    def generated(state: Any) -> list[tuple[Goal, float]]:
        pairs = [(goal, float(weight)) for goal, weight in generate(state, agent)]
        for goal, _ in pairs:
            hash(goal)  # a goal that is not hashable is the generator's error
        return pairs

    states = [graph.states[i] for i in numbers]
    offers = answers(f"the goal generator of agent {agent}", states, map(generated, states))
    number: dict[Goal, int] = {}
    rows, columns, weights = [], [], []
    for i, state, pairs in zip(numbers, states, offers, strict=True):
        if not pairs:
            raise ValueError(f"goals: expected at least one goal of agent {agent} in state {brief(state)}, got none")
        for goal, weight in pairs:
            if not 0 <= weight < math.inf:
                expected = f"goals: expected a finite weight of at least 0 of goal {brief(goal)} in state"
                raise ValueError(f"{expected} {brief(state)}, got {weight!r}")
            rows.append(i)
            columns.append(number.setdefault(goal, len(number)))
            weights.append(weight)
    return [*number], np.array(rows, np.int64), np.array(columns, np.int64), np.array(weights, np.float64)


def _offers_to_send(job: Job[_Offers], graph: Graph, numbers: Numbers) -> _Offers | None:
    """Returns None if another process would not know a goal again."""
    offers = job(graph, numbers)
    return offers if all(map(stays_equal, offers[0])) else None


def _join(batches: list[_Offers], states: int) -> tuple[list[Goal], NDArray[np.bool_], NDArray[np.float64]]:
    number: dict[Goal, int] = {}
    of_batches, rows, columns, weights = zip(*batches, strict=True)
    renumbered = [np.array([number.setdefault(goal, len(number)) for goal in goals], np.int64) for goals in of_batches]
    new_columns = [new[old] for new, old in zip(renumbered, columns, strict=True)]
    places = np.concatenate(rows), np.concatenate(new_columns)
    offered, weight = np.zeros((states, len(number)), bool), np.zeros((states, len(number)))
    offered[places] = True
    np.add.at(weight, places, np.concatenate(weights))
    return [*number], offered, weight
