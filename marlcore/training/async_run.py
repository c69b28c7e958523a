"""A run in async mode: a process for each worker, which is restarted when it dies, until all have ended."""

import errno
import logging
import time
from contextlib import closing
from functools import partial

import torch

from ..errors import MarlcoreError, WorkerFailed, suppress_failed_calls
from ..processes import Child, Children, Control, Interrupts, RestartPolicy, Supervisor, setup_worker
from .config import EVALUATOR, actor_names, learner_names
from .loops import run_seed
from .record import Monitor, RunDirectory
from .workers import ActorWorker, Blueprint, EvaluatorWorker, LearnerWorker

POLL_S = 0.1
GRACE_S = 60.0  # least time for the last checkpoints

log = logging.getLogger(__name__)


def run_worker(name: str, blueprint: Blueprint, attempt: int) -> None:
    """Runs a worker in its own process, the n-th attempt, until its work is done or the parent stops it."""
    config = blueprint.config
    torch.set_num_threads(config.learner.threads)
    torch.manual_seed(run_seed(config, f"torch-{name}", 0, attempt - 1))
    kind = ActorWorker if name in actor_names(config) else EvaluatorWorker if name == EVALUATOR else LearnerWorker
    with closing(kind(name, blueprint, attempt)) as worker:
        worker.work()
    log.info("%s is done", name)


def supervisor_of(blueprint: Blueprint, control: Control, run: RunDirectory, children: Children) -> Supervisor:
    """The supervisor of a run's workers, none of which it has started."""

    def start(name: str, attempt: int) -> Child:
        work = partial(run_worker, name, blueprint, attempt)
        return children.start_worker(name, work, prepare=partial(setup_worker, run.log_path(name)))

    config, settings = blueprint.config, blueprint.config.supervision
    timeouts = dict.fromkeys(control.workers, settings.actor_timeout)
    for name, policies in learner_names(config, [policy.name for policy in blueprint.policies]).items():
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


def run_async(
    supervisor: Supervisor, blueprint: Blueprint, control: Control, monitor: Monitor, interrupts: Interrupts
) -> None:
    """Watches the workers until all have ended. Raises WorkerFailed: one failed for good, or did not end in time.

    When the actors have taken all steps, or the run is to finish before, learners and evaluator have time for their
    last checkpoints and evaluation; a learner that dies meanwhile is restarted. Without actors, that is when the
    learners have made all updates. After a failure for good, a signal or a stop no worker is restarted, and workers
    that are still starting are killed. A second signal, a second after the first, kills all.
    """
    config, failed, ends_since, halted = blueprint.config, None, None, False
    stepping = [supervisor.workers[name] for name in actor_names(config) or control.about["learners"]]
    grace = max(GRACE_S, *(config.timeout_of(policy.name) for policy in blueprint.policies))
    while supervisor.unfinished and not interrupts.again:
        if (failed or interrupts.stopping) and not halted:
            halted, ends_since = True, ends_since or time.monotonic()
            if interrupts.stopping:
                monitor.say_stopping()
            control.stop()  # also a last evaluation, which waits for learners
            supervisor.stand_down()
            for worker in supervisor.running:
                if not worker.ready:
                    worker.end()
        elif ends_since is None and (interrupts.finishing or all(worker.done for worker in stepping)):
            ends_since = time.monotonic()
            if interrupts.finishing:
                monitor.say_stopping()
            control.finish()
        if ends_since is not None and time.monotonic() - ends_since > grace:
            late = supervisor.unfinished[0].name
            if late != EVALUATOR:  # the last of the workers
                failed = failed or WorkerFailed(late, "hang", f"it did not end within {grace:g} s")
            else:
                log.warning("evaluation: the last one was cut off, since it took more than %g s", grace)
            break
        try:
            supervisor.watch(POLL_S)
        except WorkerFailed as error:
            failed = failed or error
        monitor.tick()
    if failed and not interrupts.stopping:
        raise failed
