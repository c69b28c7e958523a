"""Runs a training run in serial mode: the roles of async mode take turns in this process."""

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from itertools import count
from time import monotonic
from typing import ParamSpec, TypeVar

import torch

from ..config import EVALUATOR
from ..errors import ClosedError, WorkerFailed
from ..loops import act, learn, observe
from ..memory import interrupting_own_waits
from ..processes import READY, Interrupts, failure_of
from ..record import Monitor
from .memory import Memory
from .roles import ActorRole, EvaluatorRole, LearnerRole, Role
from .spec import RunSpec

STEPS = 50  # of an actor's agents together, between two readings of telemetry, whose lines an actor overwrites

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=Role)
log = logging.getLogger(__name__)


class _Stopped(Exception):
    """Ends an actor's wait when the run stops."""


def run_serial(spec: RunSpec, memory: Memory, monitor: Monitor, interrupts: Interrupts) -> None:
    """Runs all roles in turn in this process, with the objects of async mode; deterministic under a seed."""
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(spec.config.learner.threads)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(spec.config.seed)
        _InTurn(stack, spec, memory, monitor, interrupts).work()


class _InTurn:
    def __init__(
        self, stack: ExitStack, spec: RunSpec, memory: Memory, monitor: Monitor, interrupts: Interrupts
    ) -> None:
        def begin(kind: type[R], names: Iterable[str]) -> list[R]:
            return [stack.enter_context(closing(kind(name, spec, memory))) for name in names]

        self.monitor, self.interrupts = monitor, interrupts
        seats = spec.config.actor.envs * sum(len(policy.agents) for policy in spec.policies)
        self._every = max(1, STEPS // seats)  # rounds
        self.learners, self.actors = begin(LearnerRole, spec.learners), begin(ActorRole, memory.crew.names)
        self.evaluators = begin(EvaluatorRole, [EVALUATOR] if spec.config.evaluation.evaluates else [])
        self._acting = False  # whether it is an actor's turn: only then do learners update during waits
        for role in (*self.learners, *self.actors, *self.evaluators):
            role.counters.store(READY, 1)

    def work(self) -> None:
        """Runs all rounds and ends the run. If a role fails, saves the other learners and raises WorkerFailed."""
        interrupts = self.interrupts
        try:
            with interrupting_own_waits(self._give_turn):
                for rounds in count(1):
                    if not self._is_unstopped() or interrupts.finishing or not self._take_round():
                        break
                    if rounds % self._every == 0:
                        self.monitor.tick()
                if self.actors and not (interrupts.stopping or interrupts.finishing):
                    self._cut_episodes()
        except _Stopped:
            pass
        except WorkerFailed as failed:
            self._save_others(failed)
            raise
        if interrupts.stopping or interrupts.finishing:
            self.monitor.say_stopping()
        for learner in self.learners:
            _guarded(learner, learner.finish)
        for evaluator in self.evaluators:
            if not interrupts.stopping:
                _guarded(evaluator, evaluator.finish, self._is_unstopped)

    def _is_unstopped(self) -> bool:
        if monotonic() >= self.monitor.due_at:  # a round or an evaluation may take long
            self.monitor.tick()
        return not self.interrupts.stopping

    def _is_unfinished(self) -> bool:
        done = all(role.done for role in self.actors or self.learners)
        return self._is_unstopped() and not self.interrupts.finishing and not done

    def _give_turn(self) -> None:
        """Lets the learners update while an actor waits: only they can end its wait, in this same thread."""
        if not self._acting:
            return
        if not self._is_unstopped():
            raise _Stopped
        for role in self.learners:
            for learner in role.learners:
                _guarded(role, learn, learner)
            role.count_updates()

    def _take_round(self) -> bool:
        """Gives each actor a turn, and makes the due updates and evaluations; returns False if all roles are done.

        A run on recorded data has no actors: each round updates each policy once.
        """
        turns = []
        self._acting = True
        for actor in self.actors:
            if not actor.done:
                turns.append((actor, _guarded(actor, observe, actor.env, actor.seats, actor)))
        self._acting = False
        if not turns and (self.actors or all(learner.done for learner in self.learners)):
            return False
        for learner in self.learners:  # before the actions, so that actors act with the newest weights
            _guarded(learner, learner.take_turn)
        self._acting = True  # with first priorities, `act` writes most rows, so an actor may wait
        for actor, due in turns:
            _guarded(actor, act, actor.env, actor.seats, due, actor)
        self._acting = False
        for evaluator in self.evaluators:
            _guarded(evaluator, evaluator.step, self._is_unfinished)
        return True

    def _cut_episodes(self) -> None:
        self._acting = True
        for actor in self.actors:
            _guarded(actor, actor.cut_episodes)
        self._acting = False
        for learner in self.learners:
            _guarded(learner, learner.take_turn)

    def _save_others(self, failed: WorkerFailed) -> None:
        for learner in self.learners:
            if learner.name == failed.worker and "\n" not in failed.traceback:
                continue  # it diverged or the disk is full, so saving would fail, too
            try:
                learner.finish()
            except Exception as error:  # possibly the learner that failed
                log.warning("%s: its last updates are not saved (%s)", learner.name, str(error))


def _guarded(role: Role, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Calls a role's `step`; turns its errors into WorkerFailed, as a role in its own process does."""
    try:
        return step(*args, **kwargs)
    except (_Stopped, WorkerFailed, ClosedError):  # from a wait: the run was stopped, or a learner failed
        raise
    except Exception as error:
        raise failure_of(role.name, error, short=True) from error
