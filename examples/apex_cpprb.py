"""Ape-X with cpprb's interface: explorers that compute priorities, one learner, and weights in shared memory.

    python examples/apex_cpprb.py [UPDATES]

The example of cpprb's page "Multiprocess Learning (Ape-X)", with a DQN that learns CartPole (Horgan et al. 2018,
arXiv:1803.00933). A program that uses cpprb changes the import of its buffer. Besides, a ParameterStore replaces a
queue of weights for each explorer, and mc.Workers replace processes and an Event, so a failure is raised and
nothing is left behind. The model is that of replay_cpprb.py.
"""

from __future__ import annotations

import copy
import sys
import time
from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
import torch
from replay_cpprb import ENV_DICT, Model, evaluate
from torch import nn

import marlcore as mc
from marlcore.compat.cpprb import MPPrioritizedReplayBuffer

BUFFER_SIZE = 100_000
EXPLORERS = 2
LOCAL_SIZE = 100  # transitions that an explorer collects before it adds them to the buffer


def as_rows(transitions: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Each field of n transitions as an array [n, width]."""
    rows = {}
    for (name, about), column in zip(ENV_DICT.items(), zip(*transitions, strict=True), strict=True):
        rows[name] = np.array(column, about.get("dtype", "float32")).reshape(len(transitions), -1)
    return rows


def explore(context: mc.WorkerContext, buffer: MPPrioritizedReplayBuffer, store: mc.ParameterStore, epsilon: float):
    """Plays with the newest weights, and adds its transitions in pieces, with their priorities."""
    model, env, local = Model(), gymnasium.make("CartPole-v1"), []
    weights, (obs, _) = store.subscriber(model), env.reset()
    while not context.stopping:
        weights.pull()
        action = model.get_action(obs, epsilon)
        next_obs, reward, terminated, truncated, _ = env.step(action)
        local.append((obs, action, reward, next_obs, terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs
        if len(local) == LOCAL_SIZE:
            rows = as_rows(local)
            with torch.no_grad():
                buffer.add(**rows, priorities=model.td_error(rows, model).abs().numpy())
            local.clear()


def learn(buffer: MPPrioritizedReplayBuffer, publisher: Any, model: Model, updates: int, workers: mc.Workers) -> None:
    """Trains the model, gives its errors back as priorities, and publishes its weights."""
    batch_size, warmup, target_every, publish_every = 64, 1_000, 200, 20
    target, optimizer = copy.deepcopy(model), torch.optim.Adam(model.parameters(), lr=5e-4)
    publisher.publish()
    while buffer.get_stored_size() < warmup:
        workers.check()
        time.sleep(0.05)
    for update in range(1, updates + 1):
        sample = buffer.sample(batch_size)
        error = model.td_error(sample, target)
        losses = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        optimizer.zero_grad()
        (torch.from_numpy(sample["weights"]) * losses).mean().backward()
        optimizer.step()
        buffer.update_priorities(sample["indexes"], error.detach().abs().numpy())
        if update % target_every == 0:
            target.load_state_dict(model.state_dict())
            workers.check()
        if update % publish_every == 0:
            publisher.publish()


def main(updates: int = 10_000) -> float:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    with (
        closing(MPPrioritizedReplayBuffer(BUFFER_SIZE, ENV_DICT)) as buffer,
        mc.ParameterStore.create(model, mode="triple_buffer") as store,
        store.publisher(model) as publisher,
        mc.Workers() as workers,
    ):
        for number in range(EXPLORERS):
            epsilon = 0.4 ** (1 + 7 * number / (EXPLORERS - 1))  # Horgan et al. 2018, section 4.1
            workers.start(explore, buffer, store, epsilon)
        learn(buffer, publisher, model, updates, workers)
        mean = evaluate(model)
        print(f"{updates} updates, {buffer.get_stored_size()} transitions held, mean return {mean:.1f}")
    return mean


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
