"""A replay ring in shared arrays, behind one lock."""

import math
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray


class LockedRing:
    """Transitions in shared memory, of observations like `obs`; calls hold the lock. Draws are with replacement."""

    def __init__(self, capacity: int, obs: NDArray[Any]) -> None:
        context = get_context("spawn")
        self.capacity = capacity
        scalars = {"action": ((), "int64"), "reward": ((), "float32"), "done": ((), "bool")}
        self._memory = {
            name: (context.RawArray("B", capacity * math.prod(shape) * np.dtype(dtype).itemsize), shape, dtype)
            for name, (shape, dtype) in {"obs": (obs.shape, obs.dtype), **scalars}.items()
        }
        self.lock, self.index, self.size = context.Lock(), context.Value("q", 0), context.Value("q", 0)
        self.__setstate__({})

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
        with self.lock:
            at = self._random.integers(self.size.value - 1, size=batch)
            return self.obs[at], self.action[at], self.reward[at], self.obs[at + 1], self.done[at]

    def sample_stacked(self, batch: int, stack: int) -> tuple[NDArray[Any], ...]:
        """Samples `stack` frames in obs and next_obs, and whether each stack is of one episode."""
        with self.lock:
            first = self._random.integers(self.size.value - stack, size=batch)
            frames = first[:, None] + np.arange(stack)
            at = frames[:, -1]
            whole = ~self.done[frames[:, :-1]].any(axis=1)
            return self.obs[frames], self.action[at], self.reward[at], self.obs[frames + 1], self.done[at], whole

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in (*self._memory, "_random")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._random = np.random.default_rng(0)
        for name, (memory, shape, dtype) in self._memory.items():
            setattr(self, name, np.frombuffer(memory, dtype).reshape(self.capacity, *shape))
