"""An actor in its worker: it builds the environment, the policies and the seats, and counts the steps."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
import torch
from numpy.typing import NDArray

from ...envs import checked, vectorize
from ...errors import ClosedError
from ...interfaces import PRIORITY, QueueSource, ReplaySource, Turn
from ...memory import interrupt_waits_with
from ...processes import EPISODES, READY, STEPS
from ...weights import ParameterStore
from ..config import Config, actor_names
from ..loops import Ended, FirstPriorities, PolicyPlayer, PublishedPolicy, Seat, act_until_done, choose_device
from .blueprint import Assignment, Blueprint, PolicyPlan, build_model, run_seed
from .memories import attach_memory
from .routes import Routes
from .worker import WAIT_S, Worker


class ActorWorker(Worker):
    """An actor process's work; a restarted actor takes the steps that are left.

    Attributes:
        env: the copies of the environment. seats: by agent. policies: by which they act.
    """

    def __init__(self, index: int, blueprint: Blueprint, attempt: int = 1) -> None:
        super().__init__(actor_names(blueprint.config)[index], blueprint.control, blueprint.telemetry, blueprint.began)
        self._blueprint = blueprint
        self._index = index
        self._attempt = attempt
        self._share = actor_share(blueprint.config, index)
        self._steps = self.counters.load(STEPS)
        self._assignment: Assignment | None = None
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            self._build()
            unless_built.pop_all()

    def _build(self) -> None:
        blueprint, config = self._blueprint, self._blueprint.config
        self.env = env = checked(self.hold(vectorize(blueprint.env_fn, config.actor.envs)))
        share = slice(self._index * env.copies, (self._index + 1) * env.copies)
        exponents = np.array(config.exploration.exponents(config.actor.processes * env.copies))[share]
        self.policies = [self._policy(i, plan, exponents) for i, plan in enumerate(blueprint.policies)]
        self.seats: dict[str, Seat] = {}
        for plan, policy in zip(blueprint.policies, self.policies, strict=True):
            self.seats |= self._seats(plan, policy)
        env.reset(run_seed(config, "env", self._index, self._steps))
        if blueprint.self_play is not None:
            (policy,) = self.policies
            self._assignment = blueprint.self_play.join_matches(blueprint, self, self._index, env, self.seats, policy)
        elif config.replay.mixture:
            replays = [plan for plan in blueprint.policies if isinstance(plan.source, ReplaySource)]
            agents = [agent for plan in replays for agent in plan.agents]
            self._assignment = Routes(config.replay.mixture, {agent: self.seats[agent] for agent in agents})

    def _seats(self, plan: PolicyPlan, policy: PublishedPolicy) -> dict[str, Seat]:
        """The seats of a policy's agents."""
        config, copies = self._blueprint.config, self.env.copies
        memory = self.hold(attach_memory(plan))
        seats = {}
        for agent in plan.agents:
            lanes = self._lanes(plan, agent, copies)
            writer = self.hold(memory.vector_writer(lanes.ravel().tolist()))
            priorities = None
            if PRIORITY in memory.spec.extras:
                discount = config.learner_of(plan.name).gamma
                priorities = FirstPriorities(plan.algorithm.first_priority, discount, copies)
            player = PolicyPlayer(policy, plan.spaces, copies, config.replay.pad)
            seats[agent] = Seat(agent, player, writer, memory.spec, lanes, priorities)
        return seats

    def _lanes(self, plan: PolicyPlan, agent: str, copies: int) -> NDArray[np.int64]:
        """The lanes of an agent's rows, int64 [parts, copies]."""
        config = self._blueprint.config
        parts = config.replay.parts if isinstance(plan.source, ReplaySource) else 1
        processes = config.actor.processes
        return np.array([plan.lanes_of(agent, self._index, copies, processes, part) for part in range(parts)])

    def _policy(self, index: int, plan: PolicyPlan, exponents: NDArray[np.float64]) -> PublishedPolicy:
        config = self._blueprint.config
        device = choose_device(config.actor.device)
        model = build_model(plan, config, index).acting.to(device)
        subscriber = self.hold(ParameterStore.attach(plan.weights)).subscriber(model)
        use = self._index * len(self._blueprint.policies) + index
        generator = np.random.default_rng(run_seed(config, "actor", use, self._steps))
        max_lag = 0 if isinstance(plan.source, QueueSource) else config.actor.max_policy_lag
        interval = config.actor.sync_interval
        policy = PublishedPolicy(plan.algorithm, model, generator, device, subscriber, exponents, interval, max_lag)
        # Without a time limit: the parent judges a learner that starts slowly, or that died while it published.
        while not self.control.stopping and not (subscriber.wait(newer_than=0, timeout=WAIT_S) and policy.pull()):
            self.beat()
        return policy

    @property
    def done(self) -> bool:
        """Whether it has taken its share of the steps."""
        return self._steps >= self._share

    def acting(self) -> bool:
        """Whether it has steps to take, and was not told to stop."""
        return not self.done and not self.control.stopping

    def begin(self, turn: Turn) -> None:
        """See `ActorRun`."""
        if self._assignment is not None:
            self._assignment.begin(turn)

    def report_ended(self, ended: Ended) -> None:
        """Reports episodes that ended."""
        self.report_each(ended.agent, "episode_return", ended.returns.tolist())
        self.report_each(ended.agent, "episode_length", ended.lengths.tolist())
        for _, numbers in ended.infos:
            for name, value in numbers.items():
                self.report(ended.agent, f"info/{name}", value)
        if self._assignment is not None:
            self._assignment.note(ended)

    def report_lost(self, agent: str, transitions: int) -> None:
        """Reports actions whose outcomes never came."""
        self.report(agent, "transitions_lost", transitions)

    def count_steps(self, steps: int) -> None:
        """Counts the steps of a round."""
        self._steps += steps
        self.counters.store(STEPS, self._steps)
        if self.env.episodes:
            self.counters.store(EPISODES, self.env.episodes)
        self.counters.store(READY, self._attempt)  # what raised before would raise again: see the supervisor
        self.beat()


def actor_share(config: Config, index: int) -> int:
    """One actor's share of the run's steps."""
    whole, rest = divmod(config.total_steps, config.actor.processes)
    return whole + (index < rest)


def run_actor(index: int, blueprint: Blueprint, attempt: int) -> None:
    """Runs an actor in its own process; see `run_worker`."""
    torch.manual_seed(run_seed(blueprint.config, "torch-actor", index, attempt - 1))
    worker = ActorWorker(index, blueprint, attempt)
    try:
        interrupt_waits_with(worker.show_patience)
        act_until_done(worker.env, worker.seats, worker.policies, worker)
        worker.counters.store(READY, attempt)  # a successor may have no step to take
    except ClosedError:
        if not worker.control.stopping:  # otherwise it was waiting for a learner
            raise
    finally:
        interrupt_waits_with(None)
        worker.close()
