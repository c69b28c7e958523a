"""The actor's loop of the designs with queues and locks: one treasure hunt, whose agents act one after another."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from marlcore.envs import TreasureHunt

from ..training_work import Setting
from .plain_dqn import mlp

SYNC = 50  # rounds between copies of the shared models


def hunt() -> TreasureHunt:
    return TreasureHunt(agents=3)


def model_of(env: TreasureHunt, agent: str, setting: Setting) -> nn.Module:
    """An untrained network."""
    inputs = math.prod(env.observation_spaces[agent].shape)
    return mlp(inputs, setting.hidden, int(env.action_spaces[agent].n))


def act(
    env: TreasureHunt, models: Mapping[str, nn.Module], setting: Setting, steps: int, store: Callable[..., None]
) -> float:
    """Steps the environment; returns the steps a second after the warm-up of each agent.

    Args:
        models: by agent, in shared memory; it acts with copies, which it renews every SYNC rounds.
        store: called with (agent, obs, action, reward, next obs, terminated).
    """
    torch.set_num_threads(1)
    generator = np.random.default_rng(0)
    local = {agent: copy.deepcopy(model) for agent, model in models.items()}
    earlier: dict[str, tuple[Any, int]] = {}
    env.reset(0)
    warm = setting.warmup * len(env.agents)
    taken, began = 0, time.perf_counter()
    while taken < steps:
        agent = env.agent
        if agent is None:
            env.reset()
            earlier.clear()
            continue
        obs, reward, terminated, truncated, _ = env.last()
        if agent in earlier:
            store(agent, *earlier.pop(agent), reward, obs, terminated)
        if terminated or truncated:
            env.step(None)
            continue
        if taken % (SYNC * len(env.agents)) == 0:
            for name, model in models.items():
                local[name].load_state_dict(model.state_dict())
        if generator.random() < setting.epsilon:
            action = int(generator.integers(4))
        else:
            with torch.no_grad():
                action = int(local[agent](torch.from_numpy(obs)[None]).argmax(dim=1).item())
        env.step(action)
        earlier[agent] = obs, action
        taken += 1
        if taken == warm:
            began = time.perf_counter()
    return (steps - warm) / (time.perf_counter() - began)
