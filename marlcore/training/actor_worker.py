"""An actor in its worker: it builds the environment, the policies and the writers, and counts the steps."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray

from ..envs import vectorize
from ..errors import ClosedError
from ..interfaces import PRIORITY, QueueSource, ReplaySource
from ..memory import interrupt_waits_with
from ..processes import EPISODES, READY, STEPS
from ..spec import TransitionSpec
from ..transitions import VectorWriter
from ..weights import ParameterStore
from .actor import Acting, Actor, Seat
from .blueprint import Blueprint, PolicyPlan, build_model, run_seed
from .config import Config
from .learner import choose_device
from .memories import attach_memory
from .names import actor_names
from .policy import Player, PublishedPolicy
from .prioritizing import PrioritizingSeat
from .routes import RoutedSeat, Routes
from .self_play.join import join_matches
from .worker import WAIT_S, Worker

__all__ = ["ActorWorker", "run_actor"]


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
        blueprint, config = self._blueprint, self._blueprint.config
        env = self.hold(vectorize(blueprint.env_fn, config.actor.envs))
        share = slice(self._index * env.copies, (self._index + 1) * env.copies)
        exponents = np.array(config.exploration.exponents(config.actor.processes * env.copies))[share]
        policies: dict[str, PublishedPolicy] = {}
        seats: dict[str, Seat] = {}
        for i, plan in enumerate(blueprint.policies):
            policy = policies[plan.name] = self._policy(i, plan, exponents)
            memory = self.hold(attach_memory(plan))
            for agent in plan.agents:
                lanes = self._lanes(plan, agent, env.copies)
                writer = self.hold(memory.vector_writer(lanes.ravel().tolist()))
                player = Player(policy, plan.spaces, env.copies, config.replay.pad)
                seats[agent] = self._seat(plan, agent, player, writer, memory.spec, lanes)
        env.reset(run_seed(config, "env", self._index, self._steps))
        acting: dict[str, Acting] = {**seats}
        if blueprint.self_play is not None:
            (policy,) = policies.values()
            acting = join_matches(blueprint, self, self._index, env, seats, policy)
        elif config.replay.mixture:
            routes = Routes(config.replay.mixture)
            for plan in blueprint.policies:
                for agent in plan.agents if isinstance(plan.source, ReplaySource) else ():
                    acting[agent] = RoutedSeat(agent, seats[agent], routes)
        return Actor(env, policies, acting, config.actor.sync_interval)

    def _lanes(self, plan: PolicyPlan, agent: str, copies: int) -> NDArray[np.int64]:
        """The lanes of an agent's rows, int64 [parts, copies]."""
        config = self._blueprint.config
        envs, processes = config.actor.envs, config.actor.processes
        parts = range(config.replay.parts if isinstance(plan.source, ReplaySource) else 1)
        return np.array([plan.lanes_of(agent, self._index, envs, processes, part)[:copies] for part in parts])

    def _seat(
        self,
        plan: PolicyPlan,
        agent: str,
        player: Player,
        writer: VectorWriter,
        spec: TransitionSpec,
        lanes: NDArray[np.int64],
    ) -> Seat:
        if PRIORITY not in spec.extras:
            return Seat(agent, player, writer, spec, lanes, self.report_each)
        discount, first = self._blueprint.config.learner_of(plan.name).gamma, plan.algorithm.first_priority
        return PrioritizingSeat(first, discount, agent, player, writer, spec, lanes, self.report_each)

    def _policy(self, index: int, plan: PolicyPlan, exponents: NDArray[np.float64]) -> PublishedPolicy:
        config = self._blueprint.config
        device = choose_device(config.actor.device)
        model = build_model(plan, config, index).acting.to(device)
        store = self.hold(ParameterStore.attach(plan.weights))
        subscriber = store.subscriber(model)
        use = self._index * len(self._blueprint.policies) + index
        generator = np.random.default_rng(run_seed(config, "actor", use, self._steps))
        max_lag = 0 if isinstance(plan.source, QueueSource) else config.actor.max_policy_lag
        policy = PublishedPolicy(plan.algorithm, model, generator, device, subscriber, exponents, max_lag)
        # Without a time limit: the parent judges a learner that starts slowly, or that died while it published.
        while not self.control.stopping and not (subscriber.wait(newer_than=0, timeout=WAIT_S) and policy.pull()):
            self.beat()
        return policy

    @property
    def done(self) -> bool:
        return self._steps >= self._share

    def step(self) -> int:
        """Makes one round; returns the steps taken."""
        self.observe()
        return self.act()

    def observe(self) -> None:
        """Makes the first half of a round, in which it writes transitions."""
        self._actor.observe()

    def act(self) -> int:
        """Makes the second half of a round; returns the steps taken."""
        taken = self._actor.act()
        self._steps += taken
        self.counters.store(STEPS, self._steps)
        if self._actor.episodes:
            self.counters.store(EPISODES, self._actor.episodes)
        self.beat()
        return taken


def actor_share(config: Config, index: int) -> int:
    """One actor's share of the run's steps."""
    whole, rest = divmod(config.total_steps, config.actor.processes)
    return whole + (index < rest)


def run_actor(index: int, blueprint: Blueprint, attempt: int) -> None:
    """Runs an actor in its own process; see `run_worker`."""
    torch.manual_seed(run_seed(blueprint.config, "torch-actor", index, attempt - 1))
    worker = ActorWorker(index, blueprint)
    try:
        interrupt_waits_with(worker.show_patience)
        if not worker.control.stopping and not worker.done:
            worker.step()  # what raises here will raise again: see the supervisor
        worker.counters.store(READY, attempt)
        while not worker.control.stopping and not worker.done:
            worker.step()
    except ClosedError:
        if not worker.control.stopping:  # otherwise it was waiting for a learner
            raise
    finally:
        interrupt_waits_with(None)
        worker.close()
