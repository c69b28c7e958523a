"""The evaluator in its worker: it builds the environment and the policies, and waits for the end of the run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from ...envs import vectorize
from ...processes import DONE, EPISODES, READY
from ...weights import ParameterStore
from ..config import EVALUATOR, Config, is_learner
from ..loops import Candidate, CommonGames, Evaluator, Games, choose_device
from ..record import KeptCheckpoints
from .blueprint import Blueprint, PolicyPlan, build_model, run_seed
from .worker import WAIT_S, Worker

NICENESS = 10  # so that the evaluator gets little time of a core that an actor or a learner needs


class EvaluatorWorker(Worker):
    """The evaluator process's work; a restarted evaluator repeats the evaluation in which its predecessor died."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(EVALUATOR, blueprint.control, blueprint.telemetry, blueprint.began)
        with ExitStack() as unless_built:
            unless_built.callback(self.close)
            self._evaluator = self._build(blueprint)
            unless_built.pop_all()

    def _build(self, blueprint: Blueprint) -> Evaluator:
        config = blueprint.config
        self._env = self.hold(vectorize(blueprint.env_fn, config.evaluation.copies))
        candidates = [self._candidate(i, plan, config) for i, plan in enumerate(blueprint.policies)]
        seed = partial(run_seed, config, "evaluation", 0)
        games: Games = CommonGames(self._env, candidates, config.evaluation, config.replay.pad, seed, self.report)
        if blueprint.self_play is not None:
            games = blueprint.self_play.join_games(blueprint, self, self._env, candidates[0], seed)
        return Evaluator(candidates, games, config.evaluation.interval, lambda: self.control.steps)

    def _candidate(self, index: int, plan: PolicyPlan, config: Config) -> Candidate:
        device = choose_device(config.actor.device)
        model = build_model(plan, config, index).to(device).acting
        subscriber = self.hold(ParameterStore.attach(plan.weights)).subscriber(model)
        kept = KeptCheckpoints(plan.checkpoint.parents[1], plan.name, config.evaluation.keep)
        return Candidate(plan.agents, plan.spaces, plan.algorithm, model, device, subscriber, kept)

    def step(self, goes_on: Callable[[], bool]) -> bool:
        """Makes an evaluation if one is due; returns whether it did."""
        self.beat()
        return self._evaluator.due and self.finish(goes_on)

    def finish(self, goes_on: Callable[[], bool]) -> bool:
        """Makes an evaluation if there are newer weights; returns whether it did."""
        return self._evaluator.evaluate(partial(self._goes_on, goes_on))

    def _goes_on(self, goes_on: Callable[[], bool]) -> bool:
        self.beat()
        if self._env.episodes:
            self.counters.store(EPISODES, 1)
        return goes_on()

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
