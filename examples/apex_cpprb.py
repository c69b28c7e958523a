"""Ape-X with cpprb's interface: explorers that compute priorities, one learner, and weights in shared memory.

    python examples/apex_cpprb.py [UPDATES]

The example of cpprb's page "Multiprocess Learning (Ape-X)", with a DQN that learns CartPole instead of an empty model
(Horgan et al. 2018, "Distributed prioritized experience replay", arXiv:1803.00933). A program that uses cpprb changes
the import of its buffer. Two things differ from that page besides: a ParameterStore replaces a queue of weights for
each explorer, and mc.Workers replace processes and an Event, so that a failure is raised and nothing is left behind.
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
from torch import nn

import marlcore as mc
from marlcore.compat.cpprb import MPPrioritizedReplayBuffer

ENV_DICT = {"obs": {"shape": 4}, "act": {"dtype": "int64"}, "rew": {}, "next_obs": {"shape": 4}, "done": {}}
BUFFER_SIZE = 100_000
EXPLORERS = 2
LOCAL_SIZE = 100  # transitions that an explorer collects before it adds them to the buffer
GAMMA = 0.98


class Model(nn.Sequential):
    """The values of both actions; [B, 4] to [B, 2]."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    @torch.no_grad()
    def get_action(self, obs: Any, epsilon: float) -> int:
        if np.random.random() < epsilon:
            return int(np.random.randint(2))
        return int(self(torch.from_numpy(obs)).argmax())

    def td_error(self, sample: dict[str, Any], target: nn.Module) -> torch.Tensor:
        """The errors [B] of double Q-learning, for rows of the fields of ENV_DICT."""
        obs, action, reward, next_obs, done = (torch.from_numpy(sample[name]) for name in ENV_DICT)
        with torch.no_grad():
            best = self(next_obs).argmax(1, keepdim=True)
            goal = reward + GAMMA * (1 - done) * target(next_obs).gather(1, best)
        return (goal - self(obs).gather(1, action)).squeeze(1)


def as_rows(transitions: list[tuple[Any, ...]]) -> dict[str, Any]:
    """Each field of n transitions as an array [n, width]."""
    columns = dict(zip(ENV_DICT, zip(*transitions, strict=True), strict=True))
    arrays = {name: np.array(column, ENV_DICT[name].get("dtype", "float32")) for name, column in columns.items()}
    return {name: array.reshape(len(transitions), -1) for name, array in arrays.items()}


def explorer(
    context: mc.WorkerContext, buffer: MPPrioritizedReplayBuffer, store: mc.ParameterStore, epsilon: float
) -> None:
    """Plays with the newest weights, and adds its transitions in pieces, with their priorities."""
    model, env = Model(), gymnasium.make("CartPole-v1")
    weights = store.subscriber(model)
    local: list[tuple[Any, ...]] = []
    obs, _ = env.reset()
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


def learner(buffer: MPPrioritizedReplayBuffer, publisher: Any, model: Model, updates: int, workers: mc.Workers) -> None:
    """Trains the model, gives its errors back as priorities, and publishes its weights."""
    batch_size, warmup, target_every, publish_every = 64, 1_000, 200, 20
    target = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    publisher.publish()
    while buffer.get_stored_size() < warmup:
        workers.check()
        time.sleep(0.05)
    for update in range(1, updates + 1):
        sample = buffer.sample(batch_size)
        error = model.td_error(sample, target)
        losses = nn.functional.huber_loss(error, torch.zeros_like(error), reduction="none")
        loss = (torch.from_numpy(sample["weights"]) * losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        buffer.update_priorities(sample["indexes"], error.detach().abs().numpy())
        if update % target_every == 0:
            target.load_state_dict(model.state_dict())
            workers.check()
        if update % publish_every == 0:
            publisher.publish()


def evaluate(model: Model, episodes: int = 20) -> float:
    """The mean return of greedy episodes."""
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for seed in range(episodes):
        obs, _ = env.reset(seed=seed)
        over = False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(model.get_action(obs, 0.0))
            over, total = terminated or truncated, total + float(reward)
    return total / episodes


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
            workers.start(explorer, buffer, store, epsilon)
        learner(buffer, publisher, model, updates, workers)
        mean = evaluate(model)
        print(f"{updates} updates, {buffer.get_stored_size()} transitions held, mean return {mean:.1f}")
    return mean


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
