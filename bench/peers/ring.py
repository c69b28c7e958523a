"""A replay ring in shared arrays, behind one lock; and priorities in a tree of sums in Python, two children a node."""

import math
import random
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LockedRing:
    """Transitions in shared memory; every add and every sample holds the lock. Draws are with replacement."""

    def __init__(self, capacity: int, shape: tuple[int, ...], dtype: str) -> None:
        context = get_context("spawn")
        self.capacity = capacity
        scalars = {"action": ((), "int64"), "reward": ((), "float32"), "done": ((), "bool")}
        self._fields: dict[str, tuple[tuple[int, ...], str]] = {"obs": (shape, dtype), **scalars}
        self._memory = {
            name: context.RawArray("B", capacity * math.prod(shape) * np.dtype(dtype).itemsize)
            for name, (shape, dtype) in self._fields.items()
        }
        self.lock, self.index, self.size = context.Lock(), context.Value("q", 0), context.Value("q", 0)
        self._map()

    def _map(self) -> None:
        self._random = np.random.default_rng(0)
        for name, (shape, dtype) in self._fields.items():
            array = np.frombuffer(self._memory[name], dtype).reshape(self.capacity, *shape)
            setattr(self, name, array)

    def add(self, obs: Any, action: int, reward: float, done: bool) -> None:
        with self.lock:
            at = self.index.value
            self.obs[at] = obs
            self.action[at] = action
            self.reward[at] = reward
            self.done[at] = done
            self.index.value = (at + 1) % self.capacity
            self.size.value = min(self.size.value + 1, self.capacity)

    def add_batch(self, obs: NDArray[Any], action: Any, reward: Any, done: Any) -> None:
        with self.lock:
            at = (self.index.value + np.arange(len(obs))) % self.capacity
            self.obs[at] = obs
            self.action[at] = action
            self.reward[at] = reward
            self.done[at] = done
            self.index.value = int(at[-1] + 1) % self.capacity
            self.size.value = min(self.size.value + len(obs), self.capacity)

    def sample(self, batch: int) -> tuple[NDArray[Any], ...]:
        """obs, action, reward, next_obs, done."""
        return self.read(self._random.integers(self.size.value - 1, size=batch))

    def read(self, at: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """The same of given rows."""
        with self.lock:
            return self.obs[at], self.action[at], self.reward[at], self.obs[at + 1], self.done[at]

    def sample_stacked(self, batch: int, stack: int) -> tuple[NDArray[Any], ...]:
        """The same with `stack` frames in obs and next_obs; and whether a stack is of one episode."""
        with self.lock:
            first = self._random.integers(self.size.value - stack, size=batch)
            frames = first[:, None] + np.arange(stack)
            at = frames[:, -1]
            whole = ~self.done[frames[:, :-1]].any(axis=1)
            return self.obs[frames], self.action[at], self.reward[at], self.obs[frames + 1], self.done[at], whole

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in (*self._fields, "_random")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._map()


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
