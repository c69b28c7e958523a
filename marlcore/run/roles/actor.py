"""The role of an actor: builds the environment, the policies and their collectors, and counts the steps."""

import logging
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...config import SCRIPT, AssignedPolicy
from ...devices import choose_device
from ...envs import checked, vectorize
from ...interfaces import PRIORITY, QueueSource, ReplaySource, Turn
from ...loops import (
    ActingPolicy,
    ByName,
    Collector,
    Ended,
    FirstPriorities,
    FollowedWeights,
    LeagueCollector,
    Recorder,
    ScriptedAtFirst,
    ScriptedPlayer,
    act_until_done,
    cut_episodes,
    network_of,
    route,
    run_seed,
)
from ...processes import EPISODES, READY, SHARE, STEPS, Telemetry
from ...references import resolve
from ...self_play import SPAN, Contender, Matches, Opponents, own_first, report_result
from ...transitions import HeldRows
from ...weights import ParameterStore
from ..memory import attach_transitions
from .role import WAIT_S, Role, settle_torch

log = logging.getLogger(__name__)


class ActorRole(Role):
    """Acts in the environment and writes transitions; after a restart it takes the remaining steps."""

    def build(self) -> None:
        spec, crew, config = self.spec, self.memory.crew, self.config
        self._index = crew.names.index(self.name)
        self._number = crew.first + self._index  # among the run's actors
        self._seed = partial(run_seed, config, epoch=self.control.about.get("epoch", 0))
        self._share = self.control.notes[self.name].loader(SHARE)
        self._steps: int = self.counters.load(STEPS)
        self._store_steps, self._store_episodes = self.counters.storer(STEPS), self.counters.storer(EPISODES)
        self.rounds, self._is_ready = 0, False
        self.tell_environments()
        self._device = None if spec.acts_compiled else choose_device(config.actor.device_of(self._index))
        had_torch = "torch" in sys.modules
        self.env = env = checked(self.hold(vectorize(spec.env_fn, config.actor.envs)))
        if not had_torch:  # only the environment uses it
            settle_torch(config, self.name, self.control, self.attempt)
        self.policies = [self._policy(policy) for policy in spec.policies]
        by_policy = [self._seats(policy, *acts) for policy, acts in zip(spec.policies, self.policies, strict=True)]
        learning = np.zeros(env.copies, np.int64)  # in a league: the index of the policy that learns in each copy
        self.seats: dict[str, Collector | LeagueCollector] = {}
        for seats in by_policy:
            self.seats |= seats
        if len(self.memory.league) > 1:
            self.seats = {name: LeagueCollector([seats[name] for seats in by_policy], learning) for name in env.agents}
        env.reset(self._seed("env", self._number, self._steps))
        self.episodes, self.ended = 0, env.ended.copy()
        self._matches = self._league(by_policy, learning) if self.memory.league else None
        self.begin: Callable[[Turn], None] = self._matches.begin if self._matches else lambda turn: None
        if config.replay.mixture and not self._matches:
            routed: dict[str, Collector] = {}
            for policy, seats in zip(spec.policies, by_policy, strict=True):
                routed |= seats if isinstance(policy.source, ReplaySource) else {}
            self.begin = partial(route, routed, list(config.replay.mixture))

    def _policy(self, policy: AssignedPolicy) -> tuple[ActingPolicy, FollowedWeights]:
        self.beat()  # a thousand policies take longer than a worker's timeout
        config, copies = self.config.of(policy.name), self.env.copies
        store = self.hold(ParameterStore.attach(self.memory.weights[policy.name]))
        network, subscriber = network_of(policy, config, self._device, store)
        log.info("%s: actions are %s", policy.name, "torch's" if policy.compiled is None else "compiled")
        use = self._number * len(self.spec.policies) + policy.index
        exponents = config.exploration.exponents(config.actors * copies)
        weights = FollowedWeights(
            subscriber,
            exponents=np.array(exponents[self._number * copies : (self._number + 1) * copies]),
            sync_interval=config.actor.sync_interval,
            max_lag=0 if isinstance(policy.source, QueueSource) else config.actor.max_policy_lag,
        )
        # No time limit: the parent handles a learner that starts slowly or died while it published.
        while not self.control.stopping and not (subscriber.wait(newer_than=0, timeout=WAIT_S) and weights.pull()):
            self.beat()
        generator = np.random.default_rng(self._seed("actor", use, self._steps))
        return ActingPolicy(network, policy.spaces, copies, config.replay.pad, generator, weights.explore), weights

    def _seats(self, policy: AssignedPolicy, acting: ActingPolicy, weights: FollowedWeights) -> dict[str, Collector]:
        """Returns the collector of each agent of a policy. Each (replay part, agent, actor, copy) has its own lane."""
        self.beat()
        config = self.config.of(policy.name)
        storage = self.hold(attach_transitions(self.memory.transitions[policy.name]))
        parts = config.replay.parts if isinstance(policy.source, ReplaySource) else 1
        gamma = config.learner_of(policy.name).gamma

        def first_priority(before: ByName, reward: NDArray[Any], after: ByName) -> NDArray[np.float32]:
            return acting.network.first_priority(before, reward, gamma, after)

        of_part = storage.lanes // parts
        lanes = self.memory.crew.lanes(parts, len(policy.agents), self.env.copies, of_part)[:, :, self._index]
        script, seats, copies = config.exploration.script, {}, self.env.copies
        for i, agent in enumerate(policy.agents):
            writer = self.hold(storage.vector_writer(lanes[:, i].ravel().tolist()))
            player: ActingPolicy | ScriptedAtFirst = replace(acting)  # with a memory of its own
            if script:
                scripted = ScriptedPlayer(script, resolve(SCRIPT, script), policy.spaces, copies, policy.hides_joint)
                player = ScriptedAtFirst(replace(acting), scripted, weights.learned)
            ends = isinstance(policy.source, ReplaySource) and policy.source.hindsight is not None
            recorder = Recorder(agent, HeldRows(writer, copies), storage.spec, lanes[:, i], gamma, ends)
            priorities = FirstPriorities(recorder, first_priority) if PRIORITY in storage.spec.extras else None
            seats[agent] = Collector(player, weights, recorder, priorities)
        return seats

    def _league(self, by_policy: list[dict[str, Collector]], learning: NDArray[np.int64]) -> Matches:
        config = self.config
        generator = np.random.default_rng(self._seed("opponents", self._number, self.control.steps))
        pools = [self.hold(ParameterStore.attach(game.pool)) for game in self.memory.league]
        live = [acting for acting, _ in self.policies]  # as opponents, they act with the newest weights
        if not config.self_play.explore:
            live = [replace(acting, explore=None, generator=generator) for acting in live]
        contenders = [self._contender(place, pools, live, seats, generator) for place, seats in enumerate(by_policy)]
        return Matches(config.self_play, contenders, learning, self.env, list(config.replay.mixture), generator)

    def _contender(
        self, place: int, pools: list[ParameterStore], live: list[ActingPolicy], seats: dict[str, Collector],
        generator: np.random.Generator,
    ) -> Contender:  # fmt: skip
        policies, pools = own_first(self.spec.policies, place), own_first(pools, place)
        subscriber = self.policies[place][1].subscriber
        for pool, newest in zip(pools, _newest(subscriber.extras["opponents"], len(pools)), strict=True):
            # on another machine, the opponent's weights may still be in transit
            while not self.control.stopping and not pool.wait(newest - 1, WAIT_S):
                self.beat()
        given = self.config, self.env.copies, generator, self._device
        opponents = Opponents(policies, pools, *given, own_first(live, place))
        results = Telemetry.attach(self.memory.league[place].results)
        report = partial(report_result, self.hold(self.hold(results).reporter(self.name)))
        return Contender(seats, lambda: subscriber.extras, opponents, report)

    @property
    def done(self) -> bool:
        """Whether this actor has taken its share of the steps."""
        return self._steps >= self._share()

    def acting(self) -> bool:
        if self.config.evaluation.wait and not self.done:
            self.await_evaluation()
        return self._steps < self._share() and not self.control.stopping

    def cut_episodes(self) -> None:
        """Steps the environment with the last actions, after the actor's last step, to complete their transitions."""
        cut_episodes(self.env, self.seats, self)
        self.count_steps(0)

    def report_ended(self, ended: Ended) -> None:
        step = self.control.steps
        self.report_each(ended.agent, "episode_return", ended.returns.tolist(), step)
        self.report_each(ended.agent, "episode_length", ended.lengths.tolist(), step)
        for _, numbers in ended.infos:
            for name, value in numbers.items():
                self.report(ended.agent, f"info/{name}", value)
        if self._matches:
            self._matches.report(ended)

    def count_steps(self, steps: int) -> None:
        self._steps += steps
        self.rounds += 1
        self._store_steps(self._steps)
        if self.env.episodes:
            self._store_episodes(self.env.episodes)
        if self._device is not None:
            self.report_gpu(self._device)
        if steps and not self._is_ready:
            self._is_ready = True
            self.counters.store(READY, self.attempt)  # a worker that raises before this is not restarted
        self.beat()

    def work(self) -> None:
        with self.control.checked_waits(self.check_wait):  # an actor waits for learners
            act_until_done(self.env, self.seats, self)
            if not self.control.stopping:
                self.cut_episodes()
            self.counters.store(READY, self.attempt)  # a restarted actor may have no step left to take


def _newest(opponents: NDArray[np.int64], policies: int) -> list[int]:
    """Returns, for each policy, the version of its newest frozen copy among the opponents; 0 without a copy."""
    places, versions = np.divmod(np.maximum(opponents, 0), SPAN)
    return [int(versions[places == place].max(initial=0)) for place in range(policies)]
