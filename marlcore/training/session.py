"""A run from its creation to its end: shared memory, workers, the monitor; everything is removed at the end."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from ..errors import MarlcoreError, WorkerFailed
from ..interfaces import ReplaySource
from ..processes import (
    PID,
    PRELOAD,
    READY,
    STEPS,
    Control,
    ForkServer,
    Interrupts,
    Metric,
    Supervisor,
    Telemetry,
    WorkerProcess,
    reason_of,
)
from ..weights import ParameterStore
from .actor_worker import ActorWorker
from .blueprint import Blueprint, PolicyPlan, build_model
from .checkpoints import load_checkpoint
from .config import Config
from .describe import check_resumed, describe
from .evaluator_worker import EvaluatorWorker
from .learner_worker import LearnerWorker
from .loaded import save_policies
from .memories import create_memory, source_of
from .monitor import Monitor
from .names import EVALUATOR, actor_names, is_learner, learner_names
from .policies import AssignedPolicy
from .policy import PolicyModel
from .progress import Progress
from .roles import run_worker
from .run_directory import RunDirectory, setup_logging
from .self_play.start import create_self_play, odds_fields, published_numbers
from .sinks import open_sinks
from .worker import Worker

__all__ = ["Session"]

POLL_S = 0.1
GRACE_S = 60.0  # least time for the last checkpoints
SERIAL_ROUNDS = 50  # between looks at telemetry
STOPPING = "stopping: writing checkpoints ..."

log = logging.getLogger(__name__)


class Session:
    """A run's shared memory and processes; a context manager that removes them.

    Args:
        env_fn: makes environments.
        policies: to train.
        config: the settings.
        interrupts: stops the run where it notes a signal.
        show: show the run's progress.
        resume: the directory of a run to continue, or None.
        callback: called with each metric, in a thread of its own.

    Attributes:
        run: the run's directory.
        sinks: of the run's metrics.
        control: the workers' counters.
        blueprint: the run's data for its workers.
        monitor: of the run's metrics.
    """

    def __init__(
        self,
        env_fn: Callable[[], Any],
        policies: tuple[AssignedPolicy, ...],
        config: Config,
        interrupts: Interrupts,
        show: bool = False,
        resume: str | Path | None = None,
        callback: Callable[[Metric], object] | None = None,
    ) -> None:
        self.config = config
        self.described = describe(env_fn, policies, config)
        self._interrupts = interrupts
        with ExitStack() as stack:
            self.run = self._directory(stack, policies, resume)
            self.sinks = open_sinks(self.run.csv, self.run.path, config.metrics, callback)
            stack.callback(self.sinks.close)
            names = [policy.name for policy in policies]
            workers = [*actor_names(config), *learner_names(config, names)]
            if config.evaluation.interval:
                workers.append(EVALUATOR)
            self.telemetry = stack.enter_context(closing(Telemetry.create(workers)))
            about = _about(policies, config, self.run.path, self.telemetry)
            self.control = stack.enter_context(closing(Control.create(workers, names, **about)))
            plans = tuple(_plan_of(stack, policy, i, config, self.run) for i, policy in enumerate(policies))
            self_play = create_self_play(stack, policies, config, self.run.path)
            if resume is not None:  # last, when no check can fail any more
                self.run.replace_config(self.described)
                if not config.replay.save:  # they would be older than the next checkpoints
                    for policy in policies:
                        self.run.replay_path(policy.name).unlink(missing_ok=True)
            save_policies(self.run.path, env_fn, policies, config)
            began = time.monotonic() - _restore_progress(self.run, self.control, config, names)
            handles = self.control.handle, self.telemetry.handle
            self.blueprint = Blueprint(env_fn, config, plans, *handles, began, self_play)
            table = stack.enter_context(Progress()) if show else None
            self.monitor = Monitor(self.run, self.sinks, self.control, self.telemetry, table, config.total_steps, began)
            stack.callback(self.monitor.finish)
            self._stack = stack.pop_all()

    def _directory(
        self, stack: ExitStack, policies: tuple[AssignedPolicy, ...], resume: str | Path | None
    ) -> RunDirectory:
        if resume is None:
            return stack.enter_context(RunDirectory.create(self.config.run_dir, self.described))
        check_resumed(resume, self.described)  # first, so that a refused run stays unchanged
        run = stack.enter_context(RunDirectory.resume(resume))
        _warn_of_what_begins_anew(run, policies, self.config)
        return run

    def work(self) -> None:
        """Works until all steps are taken, or a signal came. Raises: WorkerFailed: a worker failed for good."""
        config, interrupts = self.config, self._interrupts
        with ExitStack() as stack:
            server = ForkServer(PRELOAD, hurry=lambda: interrupts.signum is not None)
            stack.enter_context(closing(server))
            supervisor = None
            if config.mode == "async":
                supervisor = stack.enter_context(closing(_supervisor(self.blueprint, self.control, self.run, server)))
            stack.callback(self.control.stop)
            if supervisor and _start_all(
                supervisor, interrupts, config.supervision.serial_fallback and config.updates_per_step is not None
            ):
                grace = max(GRACE_S, config.supervision.learner_timeout)
                _run_async(supervisor, actor_names(config), self.control, self.monitor, interrupts, grace)
            else:
                server.close()  # it may have failed to fork
                for notes in self.control.notes.values():
                    notes.store(PID, os.getpid())
                _run_serial(self.blueprint, self.monitor, interrupts)

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


def _about(policies: tuple[AssignedPolicy, ...], config: Config, run_dir: Path, telemetry: Telemetry) -> dict[str, Any]:
    """The description of the run for `marlcore top`; a policy's share is that of its agents in the run's steps."""
    agents = sum(len(policy.agents) for policy in policies)
    return {
        "run_dir": str(run_dir.resolve()),
        "pid": os.getpid(),
        "total_steps": config.total_steps,
        "policies": {
            policy.name: {
                "batch_size": config.learner_of(policy.name).batch_size if _has_replay(policy, config) else 0,
                "share": len(policy.agents) / agents,
            }
            for policy in policies
        },
        "telemetry": dataclasses.asdict(telemetry.handle),
    }


def _warn_of_what_begins_anew(run: RunDirectory, policies: tuple[AssignedPolicy, ...], config: Config) -> None:
    """Warns of parts of a resumed run that were not saved."""
    for policy in policies:
        if not run.checkpoint_path(policy.name).exists():
            log.warning("resume: %s has no checkpoint yet, its learner starts from scratch", policy.name)
    replays = [policy.name for policy in policies if _has_replay(policy, config)]
    empty = [name for name in replays if not run.replay_path(name).exists()]
    if empty:
        log.warning("resume: replays were not saved (replay.save): empty at first for %s", ", ".join(empty))


def _has_replay(policy: AssignedPolicy, config: Config) -> bool:
    return isinstance(source_of(policy, config), ReplaySource)


def _restore_progress(run: RunDirectory, control: Control, config: Config, policies: list[str]) -> float:
    """Sets the workers' counters to the run's saved progress; returns the seconds that the run had taken.

    The parent may have been killed after a learner's checkpoint and before it saved its progress: then the actors share
    the steps of that checkpoint, so that schedules do not go back.
    """
    saved = run.progress
    steps = {name: int(saved.get("steps", {}).get(name, 0)) for name in actor_names(config)}
    reached = max(int(load_checkpoint(run.checkpoint_path(name)).get("step", 0)) for name in policies)
    missing = max(reached - sum(steps.values()), 0)
    for i, name in enumerate(steps):
        control.workers[name].store(STEPS, steps[name] + missing // len(steps) + (i < missing % len(steps)))
    return float(saved.get("time_s", 0.0))


def _plan_of(stack: ExitStack, policy: AssignedPolicy, index: int, config: Config, run: RunDirectory) -> PolicyPlan:
    """A policy's memory and weights, closed with the stack.

    Versions of the weights continue those of the checkpoint, since a saved replay's rows refer to them.
    """
    name, checkpoint, saved = policy.name, run.checkpoint_path(policy.name), run.replay_path(policy.name)
    transitions = create_memory(stack, policy, index, config, run)
    model = build_model(policy, config, index)
    state = load_checkpoint(checkpoint)
    if state:
        _check_checkpoint(checkpoint, state, model, policy)
    store = ParameterStore.create(
        model.acting,
        mode=config.learner_of(name).publish_mode,
        extras=published_numbers(policy.algorithm, config) | odds_fields(config.self_play),
        begins_after=state.get("version", 0),
        name=f"weights.{index}",
    )
    stack.enter_context(store)
    return PolicyPlan(
        name,
        policy.agents,
        policy.spaces,
        policy.algorithm,
        checkpoint,
        saved if config.replay.save else None,
        source_of(policy, config),
        transitions,
        store.handle,
        saved.exists(),
    )


def _check_checkpoint(path: Path, state: dict[str, Any], model: PolicyModel, policy: AssignedPolicy) -> None:
    """Raises ValueError: it is of another model; of this one, it becomes the state."""
    try:
        model.restore(state)
    except (KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ValueError(
            f"resume: expected a checkpoint of {policy.name}'s {type(policy.algorithm).__name__}, got {str(path)!r} "
            f"({reason})"
        ) from None


def _supervisor(blueprint: Blueprint, control: Control, run: RunDirectory, server: ForkServer) -> Supervisor:
    def start(name: str, attempt: int) -> WorkerProcess:
        work = partial(run_worker, name, blueprint, attempt)
        return WorkerProcess(server, name, work, prepare=partial(setup_logging, run.log_path(name)))

    config = blueprint.config.supervision
    timeouts = {name: config.learner_timeout if is_learner(name) else config.actor_timeout for name in control.workers}
    return Supervisor(control, start, timeouts, config.restarts)


def _start_all(supervisor: Supervisor, interrupts: Interrupts, fallback: bool) -> bool:
    """Starts the workers' processes; False if the system could not.

    Raises: MarlcoreError: they could not be started, for another reason or without a fallback.
    """
    try:
        for worker in supervisor.workers.values():
            if interrupts.signum is None:
                worker.start()
    except InterruptedError:
        pass  # a signal came, which the caller checks
    except OSError as error:
        if not fallback:
            raise MarlcoreError(f"mode: no processes can be started here ({error})") from error
        log.warning("mode: no processes can be started here (%s); all work is done in this one, in turn", str(error))
        supervisor.close()
        return False
    return True


def _run_serial(blueprint: Blueprint, monitor: Monitor, interrupts: Interrupts) -> None:
    """Runs all workers' work in turn in this process: the same objects, deterministic under a seed."""
    config = blueprint.config
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.learner.threads)
        stack.enter_context(torch.random.fork_rng(devices=[]))
        torch.manual_seed(config.seed)
        names = learner_names(config, [plan.name for plan in blueprint.policies])
        learners = [stack.enter_context(closing(LearnerWorker(name, blueprint))) for name in names]
        actors = [stack.enter_context(closing(ActorWorker(i, blueprint))) for i in range(config.actor.processes)]
        evaluators = [stack.enter_context(closing(EvaluatorWorker(blueprint)))] if config.evaluation.interval else []
        for worker in (*learners, *actors, *evaluators):
            worker.counters.store(READY, 1)

        def may_go_on() -> bool:
            return interrupts.signum is None and not all(actor.done for actor in actors)

        try:
            _take_turns(learners, actors, evaluators, may_go_on, monitor)
        except WorkerFailed:
            for learner in learners:
                try:
                    learner.finish()
                except Exception as error:  # it may be the one that failed
                    log.warning("%s: its last updates are not saved (%s)", learner.name, str(error))
            raise
        if interrupts.signum is not None:
            monitor.say(STOPPING)
        for learner in learners:
            learner.finish()
        for evaluator in evaluators:
            if interrupts.signum is None:
                _guarded(evaluator, partial(evaluator.finish, lambda: interrupts.signum is None))


def _take_turns(
    learners: list[LearnerWorker],
    actors: list[ActorWorker],
    evaluators: list[EvaluatorWorker],
    may_go_on: Callable[[], bool],
    monitor: Monitor,
) -> None:
    rounds = 0
    while may_go_on():
        acting = [actor for actor in actors if not actor.done]
        for actor in acting:
            _guarded(actor, actor.observe)
        for learner in learners:  # before the actions, so that they are of the newest weights
            _guarded(learner, learner.catch_up)
        for actor in acting:
            _guarded(actor, actor.act)
        for evaluator in evaluators:
            _guarded(evaluator, partial(evaluator.step, may_go_on))
        rounds += 1
        if rounds % SERIAL_ROUNDS == 0:
            monitor.tick()


def _guarded(worker: Worker, step: Callable[[], object]) -> None:
    """Makes a worker's step; its errors end the run as they would from a process."""
    try:
        step()
    except Exception as error:
        raise WorkerFailed(worker.name, reason_of(error), traceback.format_exc()) from error


def _run_async(
    supervisor: Supervisor, actors: list[str], control: Control, monitor: Monitor, interrupts: Interrupts, grace: float
) -> None:
    """Watches until all steps are taken, a worker fails for good or a signal comes; then until all workers end."""
    failed = None
    try:
        while interrupts.signum is None and not all(supervisor.workers[name].done for name in actors):
            supervisor.watch(POLL_S)
            monitor.tick()
    except WorkerFailed as error:
        failed = error
    if interrupts.signum is not None:
        monitor.say(STOPPING)
    if failed or interrupts.signum is not None:
        control.stop()
    else:
        control.finish()
    failed = _await_end(supervisor, control, monitor, interrupts, grace, failed)
    if interrupts.signum is None and failed:
        raise failed


def _await_end(
    supervisor: Supervisor,
    control: Control,
    monitor: Monitor,
    interrupts: Interrupts,
    grace: float,
    failed: WorkerFailed | None,
) -> WorkerFailed | None:
    """Gives stopping workers time for their last checkpoints and evaluation; returns the failure of one, if any.

    A learner that dies meanwhile is restarted. After a failure or a signal no worker is restarted, and workers that are
    still starting are killed. A second signal, a second after the first, kills all. An evaluation that takes longer is
    no failure.
    """
    began, hurried = time.monotonic(), False
    while unfinished := supervisor.unfinished:
        if not hurried and (failed or interrupts.signum is not None):
            hurried = True
            control.stop()  # a last evaluation waits for learners
            supervisor.stand_down()
            for worker in supervisor.running:
                if not worker.ready:
                    worker.end()
        if interrupts.again:
            return failed
        if time.monotonic() - began > grace:
            if [worker.name for worker in unfinished] == [EVALUATOR]:
                log.warning("evaluation: the last one was cut off, since it took more than %g s", grace)
                return failed
            return failed or WorkerFailed(unfinished[0].name, "hang", f"it did not end within {grace:g} s")
        try:
            supervisor.watch(POLL_S)
        except WorkerFailed as error:
            failed = failed or error
        monitor.tick()
    return failed
