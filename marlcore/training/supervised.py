"""A run in async mode: a process for each worker, which is restarted when it dies, until all have ended."""

from __future__ import annotations

import errno
import logging
import time
from functools import partial

from ..errors import MarlcoreError, WorkerFailed, suppress_failed_calls
from ..processes import Child, Children, Control, Interrupts, Supervisor
from .config import EVALUATOR, Config, actor_names, is_learner
from .record import STOPPING, Monitor, RunDirectory, setup_logging
from .workers import Blueprint, run_worker

POLL_S = 0.1
GRACE_S = 60.0  # least time for the last checkpoints

log = logging.getLogger(__name__)


def supervisor_of(blueprint: Blueprint, control: Control, run: RunDirectory, children: Children) -> Supervisor:
    """The supervisor of a run's workers, none of which it has started."""

    def start(name: str, attempt: int) -> Child:
        work = partial(run_worker, name, blueprint, attempt)
        return children.start_worker(name, work, prepare=partial(setup_logging, run.log_path(name)))

    config = blueprint.config.supervision
    timeouts = {name: config.learner_timeout if is_learner(name) else config.actor_timeout for name in control.workers}
    return Supervisor(children, control, start, timeouts, config.restarts)


def start_all(supervisor: Supervisor, interrupts: Interrupts, fallback: bool) -> bool:
    """Starts the workers' processes; False if the system could not. Raises MarlcoreError: there is no fallback."""
    try:
        with suppress_failed_calls(errno.EINTR):  # a signal came, which the caller checks
            for worker in supervisor.workers.values():
                if interrupts.signum is None:
                    worker.start()
    except OSError as error:
        if error.errno is None:  # a signal handler's
            raise
        if not fallback:
            raise MarlcoreError(f"mode: no processes can be started here ({error})") from error
        log.warning("mode: no processes can be started here (%s); all work is done in this one, in turn", str(error))
        return False
    return True


def run_async(
    supervisor: Supervisor, config: Config, control: Control, monitor: Monitor, interrupts: Interrupts
) -> None:
    """Watches until all steps are taken, a worker fails for good or a signal comes; then until all workers end."""
    actors, failed = actor_names(config), None
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
    grace = max(GRACE_S, config.supervision.learner_timeout)
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
