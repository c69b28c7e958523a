"""What each worker of a run does, built from one picklable blueprint; in any process, or all in one."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .actor import Actor, Policy
from .config import Config
from .control import READY, STEPS, UPDATES, Control
from .learner import Learner, choose_device
from .params import ParameterStore
from .protocols import Algorithm, Environment
from .replay import ReplayBuffer
from .rundir import write_atomically
from .shm import SegmentHandle
from .spec import Field, TransitionSpec
from .telemetry import Metric, Telemetry

__all__ = [
    "AgentPlan",
    "Blueprint",
    "actor_names",
    "actor_share",
    "build_network",
    "learner_name",
    "run_worker",
]

WAIT_S = 0.1
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentPlan:
    """One agent: what it sees and may do, and where its transitions and weights are."""

    name: str
    observation: Field
    actions: int
    checkpoint: Path
    replay: SegmentHandle
    weights: SegmentHandle


@dataclass(frozen=True)
class Blueprint:
    """A run, as its workers need it."""

    env_fn: Callable[[], Environment]
    algorithm: Algorithm
    config: Config
    agents: tuple[AgentPlan, ...]
    control: SegmentHandle
    telemetry: SegmentHandle
    began: float  # of time.monotonic, which all processes of a machine share


def transition_spec(observation: Field) -> TransitionSpec:
    """What an agent's replay holds."""
    return TransitionSpec(obs=observation, action=Field((), "int64"))


def actor_names(config: Config) -> list[str]:
    """The actors of a run."""
    return [f"actor-{i}" for i in range(config.actor.processes)]


def learner_name(agent: str) -> str:
    """The learner of an agent."""
    return f"learner-{agent}"


def actor_share(config: Config, index: int) -> int:
    """Steps that one actor takes of the run's."""
    whole, rest = divmod(config.total_steps, config.actor.processes)
    return whole + (index < rest)


def build_network(
    algorithm: Algorithm, observation: Field, actions: int, config: Config, index: int
) -> torch.nn.Module:
    """An agent's network, untrained, the same for the same seed; leaves torch's generator as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(config, "network", index))
        return algorithm.make_network(observation, actions, config.replay.stack)


class Worker:
    """What actors and learners have in common: counters, telemetry, and a wish to be told to stop."""

    def __init__(self, name: str, blueprint: Blueprint) -> None:
        self.name = name
        self.control = Control.attach(blueprint.control)
        self.counters = self.control.workers[name]
        self._telemetry = Telemetry.attach(blueprint.telemetry)
        self._reporter = self._telemetry.reporter(name)
        self._began = blueprint.began
        self._held = ExitStack()
        for thing in (self.control, self._telemetry, self._reporter):
            self.hold(thing)

    def hold(self, thing: Any) -> Any:
        """Has `thing` closed at the end, before what was held earlier."""
        self._held.callback(thing.close)
        return thing

    def report(self, agent: str, name: str, value: float) -> None:
        now = time.monotonic() - self._began
        self._reporter.report(Metric(now, self.control.steps, agent, name, value))

    def close(self) -> None:
        """Closes everything held, also when one of the closings fails."""
        self._held.close()


class ActorWorker(Worker):
    """An actor process's work."""

    def __init__(self, index: int, blueprint: Blueprint) -> None:
        super().__init__(actor_names(blueprint.config)[index], blueprint)
        self._blueprint = blueprint
        self._index = index
        self._share = actor_share(blueprint.config, index)
        self._steps = 0
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            self._actor = self._build()
            unless_built.pop_all()

    def _build(self) -> Actor:
        blueprint, index, config = self._blueprint, self._index, self._blueprint.config
        copies = range(config.actor.envs)
        envs = [self.hold(blueprint.env_fn()) for _ in copies]
        writers = {}
        for plan in blueprint.agents:
            replay = self.hold(ReplayBuffer.attach(plan.replay))
            writers[plan.name] = [self.hold(replay.writer(index * config.actor.envs + copy)) for copy in copies]
        policies = {plan.name: self._policy(i, plan) for i, plan in enumerate(blueprint.agents)}
        return Actor(
            envs,
            policies,
            writers,
            stack=config.replay.stack,
            pad=config.replay.pad,
            sync_interval=config.actor.sync_interval,
            seed=_seed(config, "env", index),
            report=self.report,
        )

    def _policy(self, index: int, plan: AgentPlan) -> Policy:
        config = self._blueprint.config
        device = choose_device(config.actor.device)
        network = build_network(self._blueprint.algorithm, plan.observation, plan.actions, config, index).to(device)
        store = self.hold(ParameterStore.attach(plan.weights))
        subscriber = store.subscriber(network)
        while not self.control.stopping and not subscriber.wait(newer_than=0, timeout=WAIT_S):
            pass
        rng = np.random.default_rng(_seed(config, "actor", self._index * len(self._blueprint.agents) + index))
        return Policy(self._blueprint.algorithm, network, subscriber, rng, device)

    @property
    def done(self) -> bool:
        return self._steps >= self._share

    def step(self) -> int:
        """One round; the steps taken."""
        taken = self._actor.step()
        self._steps += taken
        self.counters.store(STEPS, self._steps)
        return taken


class LearnerWorker(Worker):
    """A learner process's work."""

    def __init__(self, index: int, blueprint: Blueprint) -> None:
        plan = blueprint.agents[index]
        super().__init__(learner_name(plan.name), blueprint)
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            self.learner = self._build(index, plan, blueprint)
            unless_built.pop_all()

    def _build(self, index: int, plan: AgentPlan, blueprint: Blueprint) -> Learner:
        config = blueprint.config
        device = choose_device(config.learner.device, index, config.learner.device_per_agent)
        network = build_network(blueprint.algorithm, plan.observation, plan.actions, config, index).to(device)
        replay = self.hold(ReplayBuffer.attach(plan.replay))
        sampler = replay.sampler(
            config.learner.batch_size,
            stack=config.replay.stack,
            n_step=config.learner.n_step,
            gamma=config.learner.gamma,
            seed=_seed(config, "sampler", index),
            pad=config.replay.pad,
            min_size=config.learner.warmup,
        )
        store = self.hold(ParameterStore.attach(plan.weights))
        publisher = self.hold(store.publisher(network))
        return Learner(
            sampler,
            blueprint.algorithm.make_trainer(network),  # after the publisher moved the weights into place
            publisher,
            config.learner,
            config.exploration,
            device,
            report=partial(self.report, plan.name),
            save=lambda state: _save(plan.checkpoint, {**state, "network": network.state_dict()}),
        )

    def step(self, wait_s: float = WAIT_S) -> bool:
        """One update, if there is data."""
        updated = self.learner.step(wait_s)
        if updated:
            self.counters.store(UPDATES, self.learner.updates)
        return updated

    def finish(self) -> None:
        """Leaves the last weights behind: published, and in a checkpoint."""
        self.learner.publish()
        self.learner.save()


def run_worker(name: str, blueprint: Blueprint) -> None:
    """A worker's life in a process of its own, until its work is done or the parent says stop."""
    config = blueprint.config
    torch.set_num_threads(config.learner.threads)
    actors = actor_names(config)
    if name in actors:
        _run_actor(actors.index(name), blueprint)
    else:
        learners = [learner_name(plan.name) for plan in blueprint.agents]
        _run_learner(learners.index(name), blueprint)
    log.info("%s is done", name)


def _run_actor(index: int, blueprint: Blueprint) -> None:
    torch.manual_seed(_seed(blueprint.config, "torch-actor", index))
    worker = ActorWorker(index, blueprint)
    try:
        worker.counters.store(READY, 1)
        while not worker.control.stopping and not worker.done:
            worker.step()
    finally:
        worker.close()


def _run_learner(index: int, blueprint: Blueprint) -> None:
    torch.manual_seed(_seed(blueprint.config, "torch-learner", index))
    worker = LearnerWorker(index, blueprint)
    try:
        worker.counters.store(READY, 1)
        while not worker.control.stopping:
            worker.step()
        worker.finish()
    finally:
        worker.close()


def _seed(config: Config, what: str, index: int) -> int:
    """An independent seed for each use of randomness in a run."""
    key = [config.seed, index, *what.encode()]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def _save(path: Path, state: Mapping[str, Any]) -> None:
    data = io.BytesIO()
    torch.save(dict(state), data)
    write_atomically(path, data.getvalue())
