"""The work of a run's workers, built from one picklable blueprint; in separate processes, or all in one."""

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

from ..errors import ClosedError, EnvironmentFailed
from ..interfaces import Algorithm, Environment
from ..memory import SegmentHandle, interrupt_waits_with
from ..processes import BEATS, EPISODES, READY, STEPS, UPDATES, Control, Metric, Telemetry
from ..replay import ReplayBuffer, Stateful
from ..spec import Field, TransitionSpec
from ..weights import ParameterStore
from .actor import Actor, Policy
from .config import Config
from .learner import Learner, choose_device
from .names import actor_names, learner_name
from .run_directory import write_atomically

__all__ = [
    "AgentPlan",
    "Blueprint",
    "actor_share",
    "build_network",
    "load_checkpoint",
    "run_worker",
]

WAIT_S = 0.1
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AgentPlan:
    """One agent: its observations and actions, and the places of its transitions and weights."""

    name: str
    observation: Field
    actions: int
    checkpoint: Path
    saved_replay: Path | None  # None if the replay is not saved
    replay: SegmentHandle
    weights: SegmentHandle


@dataclass(frozen=True)
class Blueprint:
    """A run's data for its workers."""

    env_fn: Callable[[], Environment]
    algorithm: Algorithm
    config: Config
    agents: tuple[AgentPlan, ...]
    control: SegmentHandle
    telemetry: SegmentHandle
    began: float  # in time.monotonic, which all processes of a machine share


def transition_spec(observation: Field) -> TransitionSpec:
    """The spec of an agent's replay."""
    return TransitionSpec(obs=observation, action=Field((), "int64"))


def actor_share(config: Config, index: int) -> int:
    """One actor's share of the run's steps."""
    whole, rest = divmod(config.total_steps, config.actor.processes)
    return whole + (index < rest)


def build_network(
    algorithm: Algorithm, observation: Field, actions: int, config: Config, index: int
) -> torch.nn.Module:
    """An agent's untrained network, the same for the same seed; torch's generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(config, "network", index))
        return algorithm.make_network(observation, actions, config.replay.stack)


class Worker:
    """The common part of actors and learners: counters, heartbeat, telemetry, and resources to close."""

    def __init__(self, name: str, blueprint: Blueprint) -> None:
        self.name = name
        self.control = Control.attach(blueprint.control)
        self.counters = self.control.workers[name]
        self._beats = self.counters.load(BEATS)
        self._telemetry = Telemetry.attach(blueprint.telemetry)
        self._reporter = self._telemetry.reporter(name)
        self._began = blueprint.began
        self._held = ExitStack()
        for thing in (self.control, self._telemetry, self._reporter):
            self.hold(thing)

    def hold(self, thing: Any) -> Any:
        """Closes `thing` at the end, before things held earlier."""
        self._held.callback(thing.close)
        return thing

    def beat(self) -> None:
        """Advances the heartbeat, so that the parent sees no hang."""
        self._beats += 1
        self.counters.store(BEATS, self._beats)

    def show_patience(self) -> None:
        """The check of a wait: advances the heartbeat. Raises ClosedError: the run stops."""
        self.beat()
        if self.control.stopping:
            raise ClosedError("the run was told to stop")

    def report(self, agent: str, name: str, value: float) -> None:
        now = time.monotonic() - self._began
        self._reporter.report(Metric(now, self.control.steps, agent, name, value))

    def close(self) -> None:
        """Closes everything held, even if one closing fails."""
        self._held.close()


class ActorWorker(Worker):
    """An actor process's work; a restarted actor takes the steps that are left."""

    def __init__(self, index: int, blueprint: Blueprint) -> None:
        super().__init__(actor_names(blueprint.config)[index], blueprint)
        self._blueprint = blueprint
        self._index = index
        self._share = actor_share(blueprint.config, index)
        self._steps = self.counters.load(STEPS)
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            self._actor = self._build()
            unless_built.pop_all()

    def _build(self) -> Actor:
        blueprint, index, config = self._blueprint, self._index, self._blueprint.config
        copies = range(config.actor.envs)
        envs = [self.hold(self._make_env()) for _ in copies]
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
            seed=_seed(config, "env", index, self._steps),
            report=self.report,
        )

    def _make_env(self) -> Environment:
        try:
            return self._blueprint.env_fn()
        except Exception as error:
            raise EnvironmentFailed(f"env_fn: {type(error).__name__}: {error}") from error

    def _policy(self, index: int, plan: AgentPlan) -> Policy:
        config = self._blueprint.config
        device = choose_device(config.actor.device)
        network = build_network(self._blueprint.algorithm, plan.observation, plan.actions, config, index).to(device)
        store = self.hold(ParameterStore.attach(plan.weights))
        subscriber = store.subscriber(network)
        use = self._index * len(self._blueprint.agents) + index
        rng = np.random.default_rng(_seed(config, "actor", use, self._steps))
        policy = Policy(self._blueprint.algorithm, network, subscriber, rng, device)
        # Without a time limit: the parent judges a learner that starts slowly, or that died while it published.
        while not self.control.stopping and not (subscriber.wait(newer_than=0, timeout=WAIT_S) and policy.pull()):
            self.beat()
        return policy

    @property
    def done(self) -> bool:
        return self._steps >= self._share

    def step(self) -> int:
        """Makes one round; returns the steps taken."""
        taken = self._actor.step()
        self._steps += taken
        self.counters.store(STEPS, self._steps)
        if self._actor.episodes:
            self.counters.store(EPISODES, self._actor.episodes)
        self.beat()
        return taken


class LearnerWorker(Worker):
    """A learner process's work; a restarted learner continues from its predecessor's state.

    From shared memory it takes the last published weights and epsilon and the count of updates; from the last
    checkpoint it takes the rest of the trainer's state, or everything if shared memory holds no weights.
    """

    def __init__(self, index: int, blueprint: Blueprint) -> None:
        plan = blueprint.agents[index]
        super().__init__(learner_name(plan.name), blueprint)
        self._agent, self._log_interval = plan.name, blueprint.config.learner.log_interval
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            self.learner = self._build(index, plan, blueprint)
            self.counters.store(UPDATES, self.learner.updates)
            unless_built.pop_all()

    def _build(self, index: int, plan: AgentPlan, blueprint: Blueprint) -> Learner:
        config = blueprint.config
        device = choose_device(config.learner.device, index, config.learner.device_per_agent)
        network = build_network(blueprint.algorithm, plan.observation, plan.actions, config, index).to(device)
        replay = self.hold(ReplayBuffer.attach(plan.replay))
        store = self.hold(ParameterStore.attach(plan.weights))
        state = load_checkpoint(plan.checkpoint)
        updates, epsilon = self._restore(network, store, state)
        self._sampler = replay.sampler(
            config.learner.batch_size,
            stack=config.replay.stack,
            n_step=config.learner.n_step,
            gamma=config.learner.gamma,
            seed=_seed(config, "sampler", index, updates),
            pad=config.replay.pad,
            min_size=config.learner.warmup,
        )
        publisher = self.hold(store.publisher(network))
        trainer = blueprint.algorithm.make_trainer(network)  # after the publisher moved the weights into its row
        if state:
            trainer.load_state_dict(state["trainer"])
        if state and updates == state["updates"]:  # otherwise the draws since the checkpoint would repeat
            torch.set_rng_state(state["torch"])
            self._sampler.load_state_dict({name: tensor.numpy() for name, tensor in state["sampler"].items()})
        return Learner(
            self._sampler,
            trainer,
            publisher,
            config.learner,
            config.exploration,
            device,
            report=partial(self.report, plan.name),
            save=partial(_save, plan, network, replay, self._sampler),
            updates=updates,
            epsilon=epsilon,
        )

    @staticmethod
    def _restore(network: torch.nn.Module, store: ParameterStore, state: Mapping[str, Any]) -> tuple[int, float | None]:
        """Gives the network its predecessor's weights: the published or the saved ones, whichever had more updates.

        Returns: their updates, and their epsilon, None without any.
        """
        saved = int(state["updates"]) if state else -1
        if store.version:
            subscriber = store.subscriber(network)
            try:
                subscriber.pull()
            except TimeoutError:  # the store's only slot is torn: its publisher died while writing it
                log.warning("the published weights are torn: continuing from the checkpoint")
            else:
                published = int(subscriber.extras["updates"])
                if published >= saved:
                    return published, float(subscriber.extras["epsilon"])
        if not state:
            return 0, None
        network.load_state_dict(state["network"])
        return saved, state["epsilon"]

    def step(self, wait_s: float = WAIT_S) -> bool:
        """Makes one update, if there is data."""
        updated = self.learner.step(wait_s)
        if updated:
            self.counters.store(UPDATES, self.learner.updates)
            if self.learner.updates % self._log_interval == 0:
                self._report_stats()
        self.beat()
        return updated

    def _report_stats(self) -> None:
        stats = self._sampler.stats
        for name, value in {"lapped": stats.lapped, "redrawn": stats.redrawn, "waited_s": stats.waited}.items():
            self.report(self._agent, name, float(value))

    @property
    def due(self) -> bool:
        """Whether an update is due by `updates_per_step`; never when the run is free."""
        return bool(self._sampler.due)

    def catch_up(self) -> None:
        """Makes the due updates."""
        while self.due and self.step(wait_s=0.0):
            continue

    def finish(self) -> None:
        """Publishes the last weights, and saves them in a checkpoint."""
        self.learner.publish()
        self.learner.save()


def run_worker(name: str, blueprint: Blueprint, attempt: int) -> None:
    """Runs a worker in its own process, until its work is done or the parent stops it.

    Args:
        attempt: 1 for a worker's first process, 2 for its first restart, and so on.
    """
    config = blueprint.config
    torch.set_num_threads(config.learner.threads)
    actors = actor_names(config)
    if name in actors:
        _run_actor(actors.index(name), blueprint, attempt)
    else:
        learners = [learner_name(plan.name) for plan in blueprint.agents]
        _run_learner(learners.index(name), blueprint, attempt)
    log.info("%s is done", name)


def _run_actor(index: int, blueprint: Blueprint, attempt: int) -> None:
    torch.manual_seed(_seed(blueprint.config, "torch-actor", index, attempt - 1))
    worker = ActorWorker(index, blueprint)
    try:
        worker.counters.store(READY, attempt)
        interrupt_waits_with(worker.show_patience)
        while not worker.control.stopping and not worker.done:
            worker.step()
    except ClosedError:
        if not worker.control.stopping:  # otherwise it was waiting for a learner
            raise
    finally:
        interrupt_waits_with(None)
        worker.close()


def _run_learner(index: int, blueprint: Blueprint, attempt: int) -> None:
    torch.manual_seed(_seed(blueprint.config, "torch-learner", index, attempt - 1))
    worker = LearnerWorker(index, blueprint)
    try:
        worker.counters.store(READY, attempt)
        while not worker.control.stopping:
            worker.step()
        if worker.control.finishing:
            worker.catch_up()
        worker.finish()
    finally:
        worker.close()


def _seed(config: Config, what: str, index: int, begin: int = 0) -> int:
    """An independent seed for each use of randomness in a run, and for each point of restart."""
    key = [config.seed, index, *what.encode(), *([begin] if begin else [])]
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def load_checkpoint(path: Path) -> dict[str, Any]:
    """A checkpoint; empty if there is none yet. Raises ValueError: the file is damaged."""
    if not path.exists():
        return {}
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise anything for a file that it did not write
        reason = str(error).partition("\n")[0]
        raise ValueError(f"resume: expected a checkpoint, got {str(path)!r} ({reason})") from error
    return state


def _save(
    plan: AgentPlan, network: torch.nn.Module, replay: ReplayBuffer, sampler: Stateful, state: Mapping[str, Any]
) -> None:
    """Saves the replay, then the checkpoint: a replay newer than its checkpoint does no harm."""
    if plan.saved_replay is not None:
        replay.save(plan.saved_replay)
    data = io.BytesIO()
    drawing = {name: torch.from_numpy(array) for name, array in sampler.state_dict().items()}
    random = {"torch": torch.get_rng_state(), "sampler": drawing}
    torch.save({**state, "network": network.state_dict(), **random}, data)
    write_atomically(plan.checkpoint, data.getvalue())
