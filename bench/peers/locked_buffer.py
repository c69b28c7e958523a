"""Asynchronous DQN over shared arrays behind an `mp.Lock` each: the actor adds under it, a learner samples under it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import multiprocessing as mp

from ..training_work import Setting, Trained
from .hunting import act, hunt, model_of
from .plain_dqn import PlainDQN, Ring

NAP_S = 0.001  # of a side that waits for the other


class SharedRing:
    """A ring of shared tensors with a lock, and counters of the transitions added and the updates made."""

    def __init__(self, context: Any, capacity: int, shape: tuple[int, ...]) -> None:
        self.arrays = [
            torch.zeros(capacity, *shape).share_memory_(),
            torch.zeros(capacity, dtype=torch.int64).share_memory_(),
            torch.zeros(capacity).share_memory_(),
            torch.zeros(capacity, *shape).share_memory_(),
            torch.zeros(capacity).share_memory_(),
        ]
        self.lock = context.Lock()
        self.added = context.Value("q", 0)
        self.updates = context.Value("q", 0)

    def opened(self, capacity: int) -> Ring:
        """The same arrays as a ring of this process."""
        ring = Ring(1, ())
        ring._arrays, ring._capacity, ring.added = [array.numpy() for array in self.arrays], capacity, self.added.value
        return ring


def train(setting: Setting, steps: int) -> Trained:
    """Trains the agents of a treasure hunt; the actor waits where a learner is too far behind."""
    context = mp.get_context("spawn")
    env = hunt()
    shape = env.observation_spaces[env.agents[0]].shape
    models = {agent: model_of(env, agent, setting).share_memory() for agent in env.agents}
    shared = {agent: SharedRing(context, setting.capacity, shape) for agent in env.agents}
    done, ready = context.Event(), context.Barrier(1 + len(env.agents))
    learners = [
        context.Process(target=learn, args=(setting, models[agent], shared[agent], ready, done)) for agent in env.agents
    ]
    for process in learners:
        process.start()
    ready.wait()
    rings = {agent: one.opened(setting.capacity) for agent, one in shared.items()}

    def store(agent: str, *transition: Any) -> None:
        one = shared[agent]
        while one.added.value - setting.warmup > (one.updates.value + setting.tolerance) / setting.updates_per_step:
            time.sleep(NAP_S)
        with one.lock:
            rings[agent].add(*transition)
            one.added.value += 1

    rate = act(env, models, setting, steps, store)
    done.set()
    for process in learners:
        process.join()
    return Trained(rate, steps, sum(one.updates.value for one in shared.values()))


def learn(setting: Setting, model: Any, shared: SharedRing, ready: Any, done: Any) -> None:
    torch.set_num_threads(1)
    dqn, ring, generator = PlainDQN(setting, 0, 0, model), shared.opened(setting.capacity), np.random.default_rng(0)
    ready.wait()
    while True:
        if dqn.updates < (shared.added.value - setting.warmup) * setting.updates_per_step:
            with shared.lock:
                ring.added = shared.added.value
                batch = ring.sample(generator, setting.batch)
            dqn.update(batch)
            shared.updates.value = dqn.updates
        elif done.is_set():
            return
        else:
            time.sleep(NAP_S)
