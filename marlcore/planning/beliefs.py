"""What an agent believes of the others' actions, in arrays: for each of its actions, profiles and probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import came
from ..kernels.induction import Belief
from .graph import Graph
from .tabulate import Numbers, Tabulate, naming

# (state, agent, action) -> (probability, profile) pairs; a profile's actions of the agent and of robots do not matter
Believed = Callable[[Any, int, int], Iterable[tuple[float, Sequence[int]]]]
TOLERANCE = 1e-6  # of the sum of what is believed


@dataclass(frozen=True)
class Players:
    """The agents of a profile.

    Attributes:
        agents, actions: how many agents there are, and how many actions each has.
        robots: agents of whom nothing is believed.
        optimistic: whether the best is expected of robots instead of the worst.
    """

    agents: int
    actions: int
    robots: tuple[int, ...] = ()
    optimistic: bool = False

    def place(self, agent: int) -> int:
        """What one action of an agent adds to the profile's number."""
        return int(self.actions**agent)

    def numbers(self, agents: Sequence[int]) -> NDArray[np.int64]:
        """The profiles of these agents, everybody else's actions being 0, in ascending order if the agents are."""
        found = np.zeros(1, np.int64)
        for agent in agents:
            steps = np.arange(self.actions, dtype=np.int64) * self.place(agent)
            found = (steps[:, None] + found).ravel()
        return found


def tabulate_belief(
    tabulate: Tabulate, players: Players, agent: int, believed: Believed | None, acting: NDArray[np.bool_]
) -> Belief:
    """Evaluates what an agent believes, once for each state and action; None: all others act at random.

    Raises: ValueError: probabilities are negative or do not sum to 1, or a profile is none.
    """
    robots = players.numbers(players.robots)
    others = [i for i in range(players.agents) if i != agent and i not in players.robots]
    if believed is None:
        base = players.numbers(others)
        start = np.arange(players.actions + 1, dtype=np.int64) * len(base)
        probability = np.full(len(base) * players.actions, 1.0 / len(base))
        return Belief(start, 0, probability, np.tile(base, players.actions), robots, players.optimistic)
    batches = tabulate(_Beliefs(believed, players, agent, tuple(others)), np.flatnonzero(acting).tolist())
    counts = np.zeros((len(acting), players.actions), np.int64)
    counts[acting] = np.concatenate([np.zeros((0, players.actions), np.int64), *(one[0] for one in batches)])
    start = np.concatenate([[0], np.cumsum(counts)])
    probability, base = (np.concatenate([one[i] for one in batches] or [np.zeros(0)]) for i in (1, 2))
    return Belief(start, players.actions, probability, base.astype(np.int64), robots, players.optimistic)


@dataclass(frozen=True)
class _Beliefs:
    """What is believed: how many entries, int64 [numbers, actions]; their probabilities; their profiles' numbers."""

    believed: Believed
    players: Players
    agent: int
    others: tuple[int, ...]

    def __call__(
        self, graph: Graph, numbers: Numbers
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
        states = [graph.states[i] for i in numbers]
        said: list[list[list[tuple[float, tuple[Any, ...]]]]] = []
        with naming(f"what agent {self.agent} believes", states, said):
            said.extend(map(self._ask, states))
        entries = [
            self._checked(state, action, pairs)
            for state, by_action in zip(states, said, strict=True)
            for action, pairs in enumerate(by_action)
        ]
        counts = np.array([len(one) for one in entries], np.int64).reshape(-1, self.players.actions)
        together = [entry for one in entries for entry in one]
        return counts, np.array([p for p, _ in together]), np.array([base for _, base in together], np.int64)

    def _ask(self, state: Any) -> list[list[tuple[float, tuple[Any, ...]]]]:
        """By action the pairs; a profile is copied at once, since the caller's function may reuse its memory."""
        actions = range(self.players.actions)
        return [[(float(p), tuple(profile)) for p, profile in self.believed(state, self.agent, a)] for a in actions]

    def _checked(self, state: Any, action: int, pairs: list[tuple[float, tuple[Any, ...]]]) -> list[tuple[float, int]]:
        """Each pair's probability, and the number of its profile."""
        where = f"state {came(state)}, for action {action} of agent {self.agent}"
        total = 0.0
        for p, profile in pairs:
            if not p >= 0.0:
                raise ValueError(
                    f"believed: expected probabilities of at least 0, got {p!r} of profile {came(profile)} in {where}"
                )
            total += p
        if not math.isclose(total, 1.0, abs_tol=TOLERANCE):
            profiles = came([profile for _, profile in pairs])
            raise ValueError(f"believed: expected the sum 1, got {total!r} of the profiles {profiles} in {where}")
        return [(p, self._base(profile, where)) for p, profile in pairs]

    def _base(self, profile: tuple[Any, ...], where: str) -> int:
        players = self.players
        try:
            acts = [index(profile[i]) for i in self.others]
        except (TypeError, IndexError):  # no integers, or too few
            acts = [-1]
        if len(profile) != players.agents or not all(0 <= act < players.actions for act in acts):
            raise ValueError(
                f"believed: expected profiles of {players.agents} actions below {players.actions}, got "
                f"{came(profile)} in {where}"
            )
        return sum(act * players.place(i) for i, act in zip(self.others, acts, strict=True))
