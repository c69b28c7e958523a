"""An actor in its worker: it builds the environment, the policies and the seats, and counts the steps."""

from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...envs import checked, vectorize
from ...interfaces import PRIORITY, QueueSource, ReplaySource, Turn
from ...processes import EPISODES, READY, SHARE, STEPS, Telemetry
from ...references import resolve
from ...weights import ParameterStore
from ..config import SCRIPT
from ..loops import (
    ByName,
    Ended,
    PolicyPlayer,
    PublishedPolicy,
    Routes,
    ScriptedPlayer,
    Seat,
    act_until_done,
    build_model,
    choose_device,
    run_seed,
)
from ..self_play import Contender, Matches, Opponents, SelfPlay, report_result
from .storage import attach_storage
from .worker import WAIT_S, PolicyBlueprint, Worker


class ActorWorker(Worker):
    """An actor process's work; a restarted actor takes the steps that are left."""

    def build(self) -> None:
        blueprint, config = self.blueprint, self.config
        self._index = blueprint.crew.names.index(self.name)
        self._number = blueprint.crew.first + self._index  # among the run's actors
        self._notes = self.control.notes[self.name]
        self._steps: int = self.counters.load(STEPS)
        self.tell_environments()
        self._device = choose_device(config.actor.device_of(self._index))
        self._on_gpu = self._device.type == "cuda"
        self.env = env = checked(self.hold(vectorize(blueprint.env_fn, config.actor.envs)))
        self.policies = [self._policy(policy) for policy in blueprint.policies]
        self.seats: dict[str, Seat] = {}
        for policy, acting in zip(blueprint.policies, self.policies, strict=True):
            self.seats |= self._seats(policy, acting)
        env.reset(run_seed(config, "env", self._number, self._steps))
        self._assignment: Routes | Matches | None = None  # fills the seats' columns where an episode begins
        if blueprint.self_play is not None:
            self._assignment = self._matches(blueprint.self_play)
        elif config.replay.mixture:
            replays = [policy for policy in blueprint.policies if isinstance(policy.source, ReplaySource)]
            routed = {agent: self.seats[agent] for policy in replays for agent in policy.agents}
            self._assignment = Routes(list(config.replay.mixture), routed)

    def _policy(self, policy: PolicyBlueprint) -> PublishedPolicy:
        config, copies = self.config, self.env.copies
        device = self._device
        model = build_model(policy, config).acting.to(device)
        use = self._number * len(self.blueprint.policies) + policy.index
        exponents = config.exploration.exponents(config.actors * copies)
        subscriber = self.hold(ParameterStore.attach(policy.weights)).subscriber(model)
        acting = PublishedPolicy(
            policy.algorithm,
            model,
            np.random.default_rng(run_seed(config, "actor", use, self._steps)),
            device,
            subscriber=subscriber,
            exponents=np.array(exponents[self._number * copies : (self._number + 1) * copies]),
            sync_interval=config.actor.sync_interval,
            max_lag=0 if isinstance(policy.source, QueueSource) else config.actor.max_policy_lag,
        )
        # Without a time limit: the parent judges a learner that starts slowly, or that died while it published.
        while not self.control.stopping and not (subscriber.wait(newer_than=0, timeout=WAIT_S) and acting.pull()):
            self.beat()
        return acting

    def _seats(self, policy: PolicyBlueprint, acting: PublishedPolicy) -> dict[str, Seat]:
        """The seats of a policy's agents; a lane is of a part of the replay, an agent, an actor and a copy."""
        config, storage = self.config, self.hold(attach_storage(policy))
        parts = config.replay.parts if isinstance(policy.source, ReplaySource) else 1
        gamma = config.learner_of(policy.name).gamma

        def first_priority(before: ByName, reward: NDArray[Any], after: ByName) -> NDArray[np.float32]:
            if acting.model.rewards is not None:
                device = acting.device
                reward = acting.model.rewards(torch.tensor(reward, device=device)).numpy(force=True)
            return policy.algorithm.first_priority(before, reward, gamma, after)

        of_part = storage.lanes // parts
        lanes = self.blueprint.crew.lanes(parts, len(policy.agents), self.env.copies, of_part)[:, :, self._index]
        script, seats = config.exploration.script, {}
        for i, agent in enumerate(policy.agents):
            writer = self.hold(storage.vector_writer(lanes[:, i].ravel().tolist()))
            player = PolicyPlayer(acting, policy.spaces, self.env.copies, config.replay.pad)
            priority = first_priority if PRIORITY in storage.spec.extras else None
            ends = isinstance(policy.source, ReplaySource) and policy.source.hindsight is not None
            scripted = script and ScriptedPlayer(script, resolve(SCRIPT, script), policy.spaces, self.env.copies)
            learned = partial(getattr, acting, "learned")
            seats[agent] = Seat(
                agent, player, writer, storage.spec, lanes[:, i], priority, gamma, ends, scripted or None, learned
            )
        return seats

    def _matches(self, self_play: SelfPlay) -> Matches:
        (policy,), (acting,), config = self.blueprint.policies, self.policies, self.config
        generator = np.random.default_rng(run_seed(config, "opponents", self._number, self.control.steps))
        pool = self.hold(ParameterStore.attach(self_play.pool))
        newest = int(acting.subscriber.extras["opponents"].max())  # on another machine it may still be on its way
        while not self.control.stopping and not pool.wait(newest - 1, WAIT_S):
            self.beat()
        opponents = Opponents(policy, config, pool, self.env.copies, generator, self._device)
        results = self.hold(self.hold(Telemetry.attach(self_play.results)).reporter(self.name))
        report = partial(report_result, results)
        contender = Contender(self.seats, lambda: acting.subscriber.extras, opponents, report)
        return Matches(config.self_play, contender, self.env.ended, list(config.replay.mixture), generator)

    @property
    def done(self) -> bool:
        """Whether it has taken its share of the steps."""
        return self._steps >= self._notes.load(SHARE)

    def acting(self) -> bool:
        return not self.done and not self.control.stopping

    def begin(self, turn: Turn) -> None:
        if self._assignment is not None:
            self._assignment.begin(turn)

    def report_ended(self, ended: Ended) -> None:
        self.report_each(ended.agent, "episode_return", ended.returns.tolist())
        self.report_each(ended.agent, "episode_length", ended.lengths.tolist())
        for _, numbers in ended.infos:
            for name, value in numbers.items():
                self.report(ended.agent, f"info/{name}", value)
        if isinstance(self._assignment, Matches):
            self._assignment.note(ended)

    def count_steps(self, steps: int) -> None:
        self._steps += steps
        self.counters.store(STEPS, self._steps)
        if self.env.episodes:
            self.counters.store(EPISODES, self.env.episodes)
        if self._on_gpu:
            self.report_gpu(self._device)
        self.counters.store(READY, self.attempt)  # what raised before would raise again: see the supervisor
        self.beat()

    def work(self) -> None:
        with self.checked_waits():  # for a learner
            act_until_done(self.env, self.seats, self.policies, self)
            self.counters.store(READY, self.attempt)  # a successor may have no step to take
