"""A run in async mode: a process for each worker, which is restarted when it dies, until all have ended."""

import errno
import logging
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Protocol

import torch

from ..config import EVALUATOR, learner_names
from ..errors import MarlcoreError, WorkerFailed, suppress_failed_calls
from ..loops import run_seed
from ..processes import SHARE, STEPS, Child, Children, Control, Interrupts, RestartPolicy, Supervisor, setup_worker
from ..record import Monitor
from .workers import ActorWorker, Blueprint, EvaluatorWorker, LearnerWorker

POLL_S = 0.1
GRACE_S = 60.0  # least time for the last checkpoints
SAID_S, STOPPED_S = 5.0, 10.0  # after a signal or a failure: until a line names the last workers; for stopped ones

log = logging.getLogger(__name__)


def run_worker(name: str, blueprint: Blueprint, attempt: int) -> None:
    """Runs a worker in its own process, the n-th attempt, until its work is done or the parent stops it."""
    config = blueprint.config
    torch.set_num_threads(config.learner.threads)
    torch.manual_seed(run_seed(config, f"torch-{name}", 0, attempt - 1))
    kind = ActorWorker if name in blueprint.crew.names else EvaluatorWorker if name == EVALUATOR else LearnerWorker
    with closing(kind(name, blueprint, attempt)) as worker:
        worker.work()
    log.info("%s is done", name)


class RemoteWorkers(Protocol):
    """The actors and learners of a run on other machines."""

    @property
    def done(self) -> bool:
        """Whether its actors have taken their shares of the steps, and all rows of these have arrived."""

    @property
    def unfinished(self) -> list[str]:
        """Its learners that have not published and saved their last weights."""

    def tick(self) -> None:
        """Makes the contact with them that is due. Raises WorkerFailed: one failed for good."""


def supervisor_of(
    blueprint: Blueprint, control: Control, names: Iterable[str], log_path: Callable[[str], Path | None],
    children: Children,
) -> Supervisor:  # fmt: skip
    """The supervisor of these workers of a run, none of which it has started."""

    def start(name: str, attempt: int) -> Child:
        work = partial(run_worker, name, blueprint, attempt)
        return children.start_worker(name, work, prepare=partial(setup_worker, log_path(name)))

    config, settings = blueprint.config, blueprint.config.supervision
    timeouts = dict.fromkeys(names, settings.actor_timeout)
    for name, policies in learner_names(config, [policy.name for policy in blueprint.policies]).items():
        if name in timeouts:
            timeouts[name] = max(map(config.timeout_of, policies))
    restarts = RestartPolicy(settings.max_restarts, settings.window, settings.backoff)
    return Supervisor(children, control, start, timeouts, restarts)


def start_all(supervisor: Supervisor, interrupts: Interrupts, fallback: bool) -> bool:
    """Starts the workers' processes; False if the system could not. Raises MarlcoreError: there is no fallback."""
    try:
        with suppress_failed_calls(errno.EINTR):  # a signal came, which the caller checks
            for worker in supervisor.workers.values():
                if not interrupts.stopping:
                    worker.start()
    except OSError as error:
        if error.errno is None:  # a signal handler's
            raise
        if not fallback:
            raise MarlcoreError(f"mode: no processes can be started here ({error})") from error
        log.warning("mode: no processes can be started here (%s); all work is done in this one, in turn", str(error))
        return False
    return True


def resume_actors(supervisor: Supervisor, blueprint: Blueprint, control: Control) -> None:
    """Has actors that were done start again, if their shares of the steps have grown meanwhile."""
    for name in blueprint.crew.names:
        if supervisor.workers[name].done and control.workers[name].load(STEPS) < control.notes[name].load(SHARE):
            supervisor.workers[name].resume()


def _all_stopped(waiting: list[str], supervisor: Supervisor, monitor: Monitor | None) -> bool:
    """Whether a signal has stopped all workers that a halted run waits for; a monitor says who they are."""
    stopped = {worker.name for worker in supervisor.running if worker.process and worker.process.is_stopped}
    named = (f"{name}, which a signal has stopped" if name in stopped else name for name in waiting)
    if monitor is not None:
        monitor.say(f"still waiting for {'; '.join(named)}")
    return stopped.issuperset(waiting)


def grace_of(blueprint: Blueprint) -> float:
    """Seconds in which learners must write their last checkpoints."""
    return max(GRACE_S, *(blueprint.config.timeout_of(policy.name) for policy in blueprint.policies))


def run_async(
    supervisor: Supervisor, blueprint: Blueprint, control: Control, monitor: Monitor, interrupts: Interrupts,
    remote: RemoteWorkers | None = None,
) -> None:  # fmt: skip
    """Watches the workers until all have ended. Raises WorkerFailed: one failed for good, or did not end in time.

    When the actors have taken all steps, or the run is to finish before, learners and evaluator have time for their
    last checkpoints and evaluation; a learner that dies meanwhile is restarted. Without actors, that is when the
    learners have made all updates. After a failure for good, a signal or a stop no worker is restarted, and workers
    that are still starting are killed. A second signal, a second after the first, kills all.
    """
    config, failed, ends_since, halted, said = blueprint.config, None, None, False, False
    stepping = [
        supervisor.workers[name] for name in (control.about["learners"] if config.offline else blueprint.crew.names)
    ]
    grace = grace_of(blueprint)

    def unfinished() -> list[str]:
        return [*(remote.unfinished if remote else ()), *(worker.name for worker in supervisor.unfinished)]

    while (waiting := unfinished()) and not interrupts.again:
        if (failed or interrupts.stopping) and not halted:
            halted, ends_since = True, ends_since or time.monotonic()
            if interrupts.stopping:
                monitor.say_stopping()
            control.stop()  # also a last evaluation, which waits for learners
            supervisor.stand_down()
            for worker in supervisor.running:
                if not worker.ready:
                    worker.end()
        elif ends_since is None and (
            interrupts.finishing or (all(worker.done for worker in stepping) and (remote is None or remote.done))
        ):
            ends_since = time.monotonic()
            if interrupts.finishing:
                monitor.say_stopping()
            control.finish()
        late_s, held = 0.0 if ends_since is None else time.monotonic() - ends_since, False
        if halted and late_s > SAID_S:
            held, said = _all_stopped(waiting, supervisor, None if said else monitor), True
        if late_s > (STOPPED_S if held else grace):
            late = waiting[0]
            if late != EVALUATOR:  # the last of the workers
                failed = failed or WorkerFailed(late, "hang", f"it did not end within {grace:g} s")
            else:
                log.warning("evaluation: the last one was cut off, since it took more than %g s", grace)
            break
        try:
            supervisor.watch(POLL_S)
            if remote is not None:
                remote.tick()
                resume_actors(supervisor, blueprint, control)
        except WorkerFailed as error:
            failed = failed or error
        monitor.tick()
    if failed and not interrupts.stopping:
        raise failed
