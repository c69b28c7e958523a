"""The evaluator in its worker: it builds the environment and the policies, and waits for the end of the run."""

import os
import time
from functools import partial

import numpy as np

from ...envs import vectorize
from ...processes import DONE, EPISODES, READY
from ...weights import ParameterStore
from ..config import EVALUATOR, is_learner
from ..loops import Candidate, CommonGames, Evaluator, GoesOn, build_model, choose_device, run_seed
from ..record import KeptCheckpoints
from ..self_play import OpponentGames, Opponents
from .blueprint import Blueprint, PolicyBlueprint
from .worker import WAIT_S, Worker

NICENESS = 10  # so that the evaluator gets little time of a core that an actor or a learner needs


class EvaluatorWorker(Worker):
    """The evaluator process's work; a restarted evaluator repeats the evaluation in which its predecessor died."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(EVALUATOR, blueprint)
        with self.closed_if_it_raises():
            self._evaluator = self._build()

    def _build(self) -> Evaluator:
        blueprint, config = self.blueprint, self.config
        self._env = env = self.hold(vectorize(blueprint.env_fn, config.evaluation.copies))
        candidates = [self._candidate(i, policy) for i, policy in enumerate(blueprint.policies)]
        seed = partial(run_seed, config, "evaluation", 0)
        games: CommonGames | OpponentGames
        if blueprint.self_play is None:
            games = CommonGames(env, candidates, config.evaluation, config.replay.pad, seed, self.report)
        else:
            (policy,), (candidate,) = blueprint.policies, candidates
            pool = self.hold(ParameterStore.attach(blueprint.self_play.pool))
            opponents = Opponents(policy, config, pool, env.copies, np.random.default_rng())
            games = OpponentGames(env, policy.name, candidate, config, opponents, seed, self.report)
        return Evaluator(candidates, games.play, config.evaluation.interval, lambda: self.control.steps)

    def _candidate(self, index: int, policy: PolicyBlueprint) -> Candidate:
        device = choose_device(self.config.actor.device)
        model = build_model(policy, self.config, index).to(device).acting
        subscriber = self.hold(ParameterStore.attach(policy.weights)).subscriber(model)
        kept = KeptCheckpoints(policy.run_dir, policy.name, self.config.evaluation.keep)
        return Candidate(policy.agents, policy.spaces, policy.algorithm, model, device, subscriber, kept)

    def step(self, goes_on: GoesOn) -> bool:
        """Makes an evaluation if one is due; returns whether it did."""
        self.beat()
        return self._evaluator.due and self.finish(goes_on)

    def finish(self, goes_on: GoesOn) -> bool:
        """Makes an evaluation if there are newer weights; returns whether it did."""

        def goes_on_with_a_beat() -> bool:
            self.beat()
            if self._env.episodes:
                self.counters.store(EPISODES, 1)
            return goes_on()

        return self._evaluator.evaluate(goes_on_with_a_beat)

    def await_learners(self) -> None:
        """Waits until the learners published their last weights, or the run may not wait for that."""
        learners = [counters for name, counters in self.control.workers.items() if is_learner(name)]
        while self.control.finishing and not all(counters.load(DONE) for counters in learners):
            self.beat()
            time.sleep(WAIT_S)


def run_evaluator(blueprint: Blueprint, attempt: int) -> None:
    """Runs the evaluator in its own process; see `run_worker`."""
    worker = EvaluatorWorker(blueprint)
    control = worker.control
    os.nice(NICENESS)
    try:
        worker.counters.store(READY, attempt)
        while not control.stopping:
            if not worker.step(lambda: not control.stopping):
                time.sleep(WAIT_S)
        worker.await_learners()
        if control.finishing:
            worker.finish(lambda: control.finishing)
    finally:
        worker.close()
