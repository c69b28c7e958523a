"""The role of the evaluator: builds the environment and the policies, and evaluates them until the run ends."""

import os
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from ...config import AssignedPolicy
from ...devices import choose_device
from ...envs import vectorize
from ...loops import (
    ActingPolicy,
    Candidate,
    Evaluator,
    Games,
    GoesOn,
    network_of,
    play_in_common,
    run_seed,
)
from ...processes import BEGUN, DONE, EPISODES, READY, SKIPS, UPDATES
from ...record import EVALUATION_S, SKIPPED, KeptCheckpoints
from ...self_play import OpponentGames, Opponents, own_first
from ...weights import ParameterStore
from .role import WAIT_S, Role

NICENESS = 10  # actors and learners on the same core come first


class EvaluatorRole(Role):
    """Evaluates the policies as they train; after a restart it repeats the evaluation that was cut off."""

    def build(self) -> None:
        spec, config = self.spec, self.config
        copies = min(config.evaluation.envs, config.evaluation.episodes)
        self.tell_environments()
        self._env = env = self.hold(vectorize(spec.env_fn, copies))
        self._device = None if spec.acts_compiled else choose_device(config.actor.device_of(0))
        candidates = [self._candidate(policy) for policy in spec.policies]
        seed = partial(run_seed, config, "evaluation", 0)
        if self.memory.league:
            play = self._league_games(candidates, seed)
        else:
            given = config.evaluation.episodes, seed, self.report
            play = partial(play_in_common, env, candidates, *given)
        settings = config.evaluation
        begins = partial(self.counters.store, BEGUN)
        evaluator = Evaluator(candidates, play, settings.interval, lambda: self.steps, settings.seconds, begins=begins)
        evaluator.skipped = self.counters.load(SKIPS)  # the counters outlive a restart
        # A resumed run on recorded data takes steps again that were evaluated before.
        evaluator.last = min(max(evaluator.last, self.counters.load(UPDATES)), self.control.steps)
        self.counters.store(BEGUN, max(self.counters.load(BEGUN), evaluator.last))
        self._evaluator = evaluator

    def _league_games(self, candidates: list[Candidate], seed: Callable[[int], int]) -> Games:
        config, env = self.config, self._env
        pools = [self.hold(ParameterStore.attach(game.pool)) for game in self.memory.league]
        policies = [candidate.policy for candidate in candidates]
        games = []
        for place, candidate in enumerate(candidates):
            league = own_first(policies, place), own_first(pools, place)
            opponents = Opponents(*league, config, env.copies, np.random.default_rng(), self._device)
            games.append(OpponentGames(env, candidate, config, opponents, seed, self.report))
        return lambda now, goes_on: all(game.play(now, goes_on) for game in games)

    def _candidate(self, policy: AssignedPolicy) -> Candidate:
        store = self.hold(ParameterStore.attach(self.memory.weights[policy.name]))
        network, subscriber = network_of(policy, self.config, self._device, store)
        arrays = policy.compiled is not None
        kept = KeptCheckpoints(self.memory.run_dir, policy.name, self.config.evaluation.keep, arrays)
        given = policy.spaces, self._env.copies, self.config.replay.pad, np.random.default_rng(0)
        saved = self.memory.saved[policy.name]
        return Candidate(policy, ActingPolicy(network, *given), subscriber, kept, saved)

    def step(self, goes_on: GoesOn) -> bool:
        """Makes an evaluation if one is due; returns whether it did."""
        self.beat()
        return self._evaluator.due and self.finish(goes_on, final=False)

    def finish(self, goes_on: GoesOn, final: bool = True) -> bool:
        """Makes an evaluation if the weights are newer than in the last one; returns whether it did."""

        def goes_on_with_a_beat() -> bool:
            self.beat()
            if self._env.episodes:
                self.counters.store(EPISODES, 1)
            return goes_on()

        began = time.monotonic()
        played = self._evaluator.evaluate(goes_on_with_a_beat, final)
        self.counters.store(UPDATES, self._evaluator.last)
        if played:
            step = max(candidate.step for candidate in self._evaluator.candidates)
            self.counters.store(SKIPS, self._evaluator.skipped)
            self.report("", SKIPPED, self._evaluator.skipped, step)
            self.report("", EVALUATION_S, time.monotonic() - began, step)
        return played

    def work(self) -> None:
        control = self.control
        os.nice(NICENESS)
        self.counters.store(READY, self.attempt)
        waits = self.config.evaluation.wait
        while not control.stopping:  # the end interrupts an evaluation, unless `wait`; the last weights follow below
            if not self.step(lambda: not control.stopping or (waits and control.finishing)):
                time.sleep(WAIT_S)
        learners = [control.workers[name] for name in control.about["learners"]]
        while control.finishing and not all(counters.load(DONE) for counters in learners):
            self.beat()
            time.sleep(WAIT_S)
        if control.finishing:
            self.finish(lambda: control.finishing)
