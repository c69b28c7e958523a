"""A run in serial mode: all workers' work in turn in this process, with the objects of async mode."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from itertools import count
from typing import ParamSpec, TypeVar

import torch

from ..config import EVALUATOR, actor_names, learner_names
from ..errors import ClosedError, WorkerFailed
from ..loops import act, learn, observe
from ..memory import interrupting_own_waits_with
from ..processes import READY, Interrupts, failure_of
from ..record import Monitor
from .workers import ActorWorker, Blueprint, EvaluatorWorker, LearnerWorker, Worker

ROUNDS = 50  # between looks at telemetry

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger(__name__)


class _Stopped(Exception):
    """The run was told to stop while an actor waits."""


def run_serial(blueprint: Blueprint, monitor: Monitor, interrupts: Interrupts) -> None:
    """Runs all workers' work in turn in this process: the same objects, deterministic under a seed."""
    config = blueprint.config
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.learner.threads)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(config.seed)
        names = learner_names(config, [policy.name for policy in blueprint.policies])
        learners = [stack.enter_context(closing(LearnerWorker(name, blueprint))) for name in names]
        actors = [stack.enter_context(closing(ActorWorker(name, blueprint))) for name in actor_names(config)]
        evaluation = [EVALUATOR] if config.evaluation.evaluates else []
        evaluators = [stack.enter_context(closing(EvaluatorWorker(name, blueprint))) for name in evaluation]
        for worker in (*learners, *actors, *evaluators):
            worker.counters.store(READY, 1)

        def unstopped() -> bool:
            if monitor.due:  # a round or an evaluation may take long
                monitor.tick()
            return not interrupts.stopping

        def unfinished() -> bool:
            done = all(worker.done for worker in actors or learners)
            return unstopped() and not interrupts.finishing and not done

        def give_turn() -> None:
            """In a wait of an actor: only a learner, in this same thread, can end it."""
            if not unstopped():
                raise _Stopped
            for worker in learners:
                for learner in worker.learners:
                    _guarded(worker, learn, learner)
                worker.count_updates()

        giving_turns = partial(interrupting_own_waits_with, give_turn)
        try:
            _take_rounds(actors, learners, evaluators, monitor, unfinished, giving_turns)
            if actors and not (interrupts.stopping or interrupts.finishing):
                for actor in actors:
                    with giving_turns():
                        _guarded(actor, actor.cut_episodes)
                for learner in learners:
                    _guarded(learner, learner.take_turn)
        except _Stopped:
            pass
        except WorkerFailed as failed:
            _save_others(learners, failed)
            raise
        if interrupts.stopping or interrupts.finishing:
            monitor.say_stopping()
        for learner in learners:
            _guarded(learner, learner.finish)
        for evaluator in evaluators:
            if not interrupts.stopping:
                _guarded(evaluator, evaluator.finish, unstopped)


def _take_rounds(
    actors: list[ActorWorker],
    learners: list[LearnerWorker],
    evaluators: list[EvaluatorWorker],
    monitor: Monitor,
    unfinished: Callable[[], bool],
    giving_turns: Callable[[], AbstractContextManager[None]],
) -> None:
    """A round is a turn of every actor, and the updates and evaluations that are due by then.

    Without actors it is an update of every policy.
    """
    for rounds in count(1):
        if not unfinished():
            return
        playing = [actor for actor in actors if not actor.done]
        with giving_turns():
            turns = [_guarded(actor, observe, actor.env, actor.seats, actor) for actor in playing]
        for learner in learners:  # before the actions, so that they are of the newest weights
            _guarded(learner, learner.take_turn)
        with giving_turns():  # with first priorities, most rows are written before the next actions
            for actor, due in zip(playing, turns, strict=True):
                _guarded(actor, act, actor.env, actor.seats, due, actor)
        for evaluator in evaluators:
            _guarded(evaluator, evaluator.step, unfinished)
        if rounds % ROUNDS == 0:
            monitor.tick()


def _save_others(learners: list[LearnerWorker], failed: WorkerFailed) -> None:
    for learner in learners:
        if learner.name == failed.worker and "\n" not in failed.traceback:
            continue  # it diverged or the disk is full: it would fail again
        try:
            learner.finish()
        except Exception as error:  # it may be the one that failed
            log.warning("%s: its last updates are not saved (%s)", learner.name, str(error))


def _guarded(worker: Worker, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Makes a worker's step; its errors end the run as they would from a process."""
    try:
        return step(*args, **kwargs)
    except (_Stopped, WorkerFailed, ClosedError):  # of a wait: the run or its program was stopped, or a learner failed
        raise
    except Exception as error:
        raise failure_of(worker.name, error, short=True) from error
