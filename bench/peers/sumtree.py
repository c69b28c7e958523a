"""Priorities in a tree of sums in Python, two children a node, as learners keep them beside a shared ring."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ring import LockedRing


class SumTree:
    """Node k is the sum of nodes 2k and 2k + 1; a list, whose items Python reads quicker than an array's."""

    def __init__(self, masses: NDArray[np.float64]) -> None:
        self.first = 1 << (len(masses) - 1).bit_length()
        levels = [np.concatenate([masses, np.zeros(self.first - len(masses))])]
        while len(levels[0]) > 1:
            levels.insert(0, levels[0].reshape(-1, 2).sum(axis=1))
        self.nodes: list[float] = [0.0, *np.concatenate(levels).tolist()]

    def put(self, leaf: int, mass: float) -> None:
        node = leaf + self.first
        change = mass - self.nodes[node]
        while node:
            self.nodes[node] += change
            node >>= 1

    def find(self, point: float) -> int:
        """The leaf on which a point of the total mass falls."""
        node = 1
        while node < self.first:
            node *= 2
            if point >= self.nodes[node]:
                point -= self.nodes[node]
                node += 1
        return node - self.first


class PrioritizedRing:
    """A filled LockedRing, drawn from in proportion to (priority + EPSILON)^ALPHA; all priorities are 1 at first."""

    ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-6

    def __init__(self, ring: LockedRing) -> None:
        self.ring = ring
        self.count = ring.capacity - 1  # the newest row has no next_obs yet
        self.tree = SumTree(np.full(self.count, (1 + self.EPSILON) ** self.ALPHA))

    def sample(self, batch: int) -> tuple[tuple[NDArray[Any], ...], NDArray[Any], NDArray[Any]]:
        """The fields of the rows drawn, their weights, and where they are."""
        part = self.tree.nodes[1] / batch
        at = np.array([min(self.tree.find((i + random.random()) * part), self.count - 1) for i in range(batch)])
        masses = np.array([self.tree.nodes[leaf + self.tree.first] for leaf in at])
        weights = (self.count * masses / self.tree.nodes[1]) ** -self.BETA
        return self.ring.read(at), weights / weights.max(), at

    def update(self, at: NDArray[Any], priorities: NDArray[Any]) -> None:
        for leaf, priority in zip(at.tolist(), priorities.tolist(), strict=True):
            self.tree.put(leaf, (priority + self.EPSILON) ** self.ALPHA)
