"""Tabulates an agent's beliefs: for each of its actions, a distribution over the other agents' actions."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from .graph import Graph
from .kernels.soft_policies import Belief
from .tabulate import Numbers, Tabulate, answers

# (state, agent, action) -> (probability, profile) pairs; a profile's actions of the agent and of robots are ignored
Believed = Callable[[Any, int, int], Iterable[tuple[float, Sequence[int]]]]
TOLERANCE = 1e-6  # of a sum of believed probabilities


def tabulate_belief(
    tabulate: Tabulate,
    agent: int,
    robots: tuple[int, ...],
    optimistic: bool,
    believed: Believed | None,
    acting: NDArray[np.bool_],
) -> Belief:
    """Tabulates an agent's beliefs for each of its actions, in the states that `acting`, bool [states], marks.

    Tabulates uniform beliefs for all states if `believed` is None.
    """
    graph, actions = tabulate.graph, tabulate.graph.actions
    others = tuple(i for i in range(graph.agents) if i != agent and i not in robots)
    free = _profiles_of(robots, actions)
    if believed is None:
        base = _profiles_of(others, actions)
        start = np.arange(actions + 1, dtype=np.int64) * len(base)
        return Belief(start, 0, np.full(start[-1], 1.0 / len(base)), np.tile(base, actions), free, optimistic)
    beliefs = partial(_beliefs, believed, agent, others)
    batches = [beliefs(graph, []), *tabulate(beliefs, np.flatnonzero(acting).tolist())]
    of_acting, probability, base = (np.concatenate(arrays) for arrays in zip(*batches, strict=True))
    counts = np.zeros((len(acting), actions), np.int64)
    counts[acting] = of_acting
    return Belief(np.concatenate([[0], np.cumsum(counts)]), actions, probability, base, free, optimistic)


def _profiles_of(agents: Sequence[int], actions: int) -> NDArray[np.int64]:
    """Returns the numbers of all profiles in which the other agents take action 0; sorted if `agents` are."""
    profiles = np.zeros(1, np.int64)
    for agent in agents:
        steps = np.arange(actions, dtype=np.int64) * actions**agent
        profiles = (steps[:, None] + profiles).ravel()
    return profiles


def _beliefs(
    believed: Believed, agent: int, others: tuple[int, ...], graph: Graph, numbers: Numbers
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    """Calls `believed` for each action in the states `numbers`.

    Returns the number of pairs for each state and action, [numbers, actions]; then, for all pairs one after another,
    the probabilities and the profiles' bases (see `_base`).
    """

    def pairs_of(state: Any) -> list[list[tuple[float, tuple[Any, ...]]]]:
        # Copies each profile at once, since the caller's function may reuse its memory.
        by_action = (believed(state, agent, action) for action in range(graph.actions))
        return [[(float(p), tuple(profile)) for p, profile in pairs] for pairs in by_action]

    states = [graph.states[i] for i in numbers]
    beliefs = answers(f"what agent {agent} believes", states, map(pairs_of, states))
    counts, probabilities, bases = [], [], []
    for state, by_action in zip(states, beliefs, strict=True):
        for action, pairs in enumerate(by_action):
            where = f"state {brief(state)}, for action {action} of agent {agent}"
            _check_probabilities(pairs, where)
            counts.append(len(pairs))
            probabilities += [p for p, _ in pairs]
            bases += [_base(profile, others, graph, where) for _, profile in pairs]
    shaped = np.array(counts, np.int64).reshape(-1, graph.actions)
    return shaped, np.array(probabilities, np.float64), np.array(bases, np.int64)


def _check_probabilities(pairs: list[tuple[float, tuple[Any, ...]]], where: str) -> None:
    total = 0.0
    for p, profile in pairs:
        if not p >= 0.0:
            raise ValueError(
                f"believed: expected probabilities of at least 0, got {p!r} for profile {brief(profile)} in {where}"
            )
        total += p
    if not math.isclose(total, 1.0, abs_tol=TOLERANCE):
        profiles = brief([profile for _, profile in pairs])
        raise ValueError(f"believed: expected probabilities that sum to 1, got {total!r} for {profiles} in {where}")


def _base(profile: tuple[Any, ...], others: tuple[int, ...], graph: Graph, where: str) -> int:
    """Returns the number of the profile with the actions of `others`, and action 0 of all other agents."""
    try:
        acts = [index(profile[i]) for i in others]
    except (TypeError, IndexError):  # not integers, or too few
        acts = [-1]
    if len(profile) != graph.agents or not all(0 <= act < graph.actions for act in acts):
        raise ValueError(
            f"believed: expected profiles of {graph.agents} actions from 0 to {graph.actions - 1}, got "
            f"{brief(profile)} in {where}"
        )
    return sum(act * graph.actions**i for i, act in zip(others, acts, strict=True))
