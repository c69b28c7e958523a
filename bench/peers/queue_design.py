"""Asynchronous DQN over `multiprocessing.Queue`: the actor pickles each transition, learners own their rings.

An actor process steps one treasure hunt and acts by a copy of each agent's model in shared memory. A learner process
an agent takes the transitions from its queue, and trains the shared model in place.
"""

from __future__ import annotations

import time
from queue import Empty
from typing import Any

import numpy as np
import torch
from torch import multiprocessing as mp

from ..training_work import Setting, Trained
from .hunting import act, hunt, model_of
from .plain_dqn import PlainDQN, Ring


def train(setting: Setting, steps: int) -> Trained:
    """Trains the agents of a treasure hunt; a queue holds what a learner may be behind, so that the ratio holds."""
    context = mp.get_context("spawn")
    env = hunt()
    models = {agent: model_of(env, agent, setting).share_memory() for agent in env.agents}
    ahead = round(setting.tolerance / setting.updates_per_step)
    queues = {agent: context.Queue(ahead) for agent in env.agents}
    done, updates, ready = context.Event(), context.Queue(), context.Barrier(1 + len(env.agents))
    learners = [
        context.Process(target=learn, args=(setting, models[agent], queues[agent], ready, done, updates))
        for agent in env.agents
    ]
    for process in learners:
        process.start()
    ready.wait()

    def store(agent: str, *transition: Any) -> None:
        queues[agent].put(transition)

    rate = act(env, models, setting, steps, store)
    done.set()
    made = sum(updates.get() for _ in learners)
    for process in learners:
        process.join()
    return Trained(rate, steps, made)


def learn(setting: Setting, model: Any, queue: Any, ready: Any, done: Any, updates: Any) -> None:
    torch.set_num_threads(1)
    env = hunt()
    dqn = PlainDQN(setting, 0, 0, model)
    ring, generator = Ring(setting.capacity, env.observation_spaces[env.agents[0]].shape), np.random.default_rng(0)
    ready.wait()
    while True:
        try:
            ring.add(*queue.get(timeout=0.05))
        except Empty:
            if done.is_set():
                break
            continue
        while dqn.updates < (ring.added - setting.warmup) * setting.updates_per_step:
            dqn.update(ring.sample(generator, setting.batch))
    updates.put(dqn.updates)
    time.sleep(0)
