"""Asynchronous DQN in two common designs: `multiprocessing.Queue`, or shared arrays behind an `mp.Lock` each.

An actor process steps a treasure hunt. Per agent, a learner process trains a model in shared memory; actors copy it.
"""

import copy
import math
import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import multiprocessing as mp
from torch import nn

from marlcore.envs import TreasureHunt

from ..peers.plain_dqn import PlainDQN, Ring, columns, mlp
from ..peers.setting import Setting
from .side import Tell

SYNC = 50  # rounds between copies of the shared models
NAP_S = 0.001  # of a side that waits for the other


class Pickles:
    """The actor pickles each transition; the learner owns its ring. The queue is as long as a learner may be behind."""

    def __init__(self, context: Any, setting: Setting, shape: tuple[int, ...]) -> None:
        self.setting, self.shape = setting, shape
        self.queue = context.Queue(round(setting.tolerance / setting.updates_per_step))
        self.updates = context.Value("q", 0)

    def add(self, *transition: Any) -> None:
        self.queue.put(transition)

    def finish(self) -> None:
        self.queue.put(None)

    def learn(self, model: nn.Module) -> None:
        dqn = PlainDQN(self.setting, model)
        ring, generator = Ring(columns(self.setting.capacity, self.shape)), np.random.default_rng(0)
        while transition := self.queue.get():
            ring.add(*transition)
            while dqn.updates < (ring.added - self.setting.warmup) * self.setting.updates_per_step:
                dqn.update(ring.sample(generator, self.setting.batch))
            self.updates.value = dqn.updates


class SharedArrays:
    """The actor adds to shared tensors under a lock, a learner samples under it; an actor too far ahead waits."""

    def __init__(self, context: Any, setting: Setting, shape: tuple[int, ...]) -> None:
        self.setting = setting
        self.arrays = [torch.from_numpy(array).share_memory_() for array in columns(setting.capacity, shape)]
        self.lock, self.done = context.Lock(), context.Event()
        self.added, self.updates = context.Value("q", 0), context.Value("q", 0)

    @cached_property
    def ring(self) -> Ring:
        """This process's ring over the shared arrays."""
        return Ring([array.numpy() for array in self.arrays])

    def add(self, *transition: Any) -> None:
        setting, ring = self.setting, self.ring
        ahead = setting.warmup + setting.tolerance / setting.updates_per_step
        while self.added.value > ahead + self.updates.value / setting.updates_per_step:
            time.sleep(NAP_S)
        with self.lock:
            ring.add(*transition)
            self.added.value += 1

    def finish(self) -> None:
        self.done.set()

    def learn(self, model: nn.Module) -> None:
        dqn = PlainDQN(self.setting, model)
        ring, setting, generator = self.ring, self.setting, np.random.default_rng(0)
        while True:
            if dqn.updates < (self.added.value - setting.warmup) * setting.updates_per_step:
                with self.lock:
                    ring.added = self.added.value
                    batch = ring.sample(generator, setting.batch)
                dqn.update(batch)
                self.updates.value = dqn.updates
            elif self.done.is_set():
                return
            else:
                time.sleep(NAP_S)


DESIGNS = {"queue": Pickles, "lock": SharedArrays}


def train(setting: Setting, tell: Tell, form: str) -> None:
    context, env = mp.get_context("spawn"), TreasureHunt(agents=setting.agents)
    spaces, actions = env.observation_spaces, env.action_spaces
    models = {
        agent: mlp(math.prod(spaces[agent].shape), setting.hidden, int(actions[agent].n)).share_memory()
        for agent in env.agents
    }
    sides = {agent: DESIGNS[form](context, setting, spaces[agent].shape) for agent in env.agents}
    learners = [context.Process(target=sides[agent].learn, args=(models[agent],)) for agent in env.agents]
    for process in learners:
        process.start()
    _act(env, models, setting, sides, tell)
    for side, process in zip(sides.values(), learners, strict=True):
        side.finish()
        process.join()


def _act(
    env: TreasureHunt, models: Mapping[str, nn.Module], setting: Setting, sides: Mapping[str, Any], tell: Tell
) -> None:
    """Steps the environment, and acts with copies of the models."""
    generator = np.random.default_rng(0)
    local = {agent: copy.deepcopy(model).requires_grad_(False) for agent, model in models.items()}
    earlier: dict[str, tuple[Any, int]] = {}
    env.reset(0)
    taken = 0
    while taken % SYNC or tell(taken, sum(side.updates.value for side in sides.values())):
        agent = env.agent
        if agent is None:
            env.reset()
            earlier.clear()
            continue
        obs, reward, terminated, truncated, _ = env.last()
        if agent in earlier:
            sides[agent].add(*earlier.pop(agent), reward, obs, terminated)
        if terminated or truncated:
            env.step(None)
            continue
        if taken % (SYNC * len(env.agents)) == 0:
            for name, model in models.items():
                local[name].load_state_dict(model.state_dict())
        if generator.random() < setting.epsilon:
            action = int(generator.integers(4))
        else:
            action = int(local[agent](torch.from_numpy(obs)[None]).argmax(dim=1).item())
        env.step(action)
        earlier[agent] = obs, action
        taken += 1
