"""Runs a training run in async mode: each role has a process, which the supervisor restarts when it dies."""

import errno
import logging
import os
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ..config import EVALUATOR
from ..errors import MarlcoreError, WorkerFailed, suppress_failed_calls
from ..processes import SHARE, STEPS, Child, Children, Control, Interrupts, RestartPolicy, Supervisor, setup_worker
from ..record import Monitor
from . import roles
from .memory import Memory
from .spec import RunSpec

POLL_S = 0.1
GRACE_S = 60.0  # least time that learners get for their last checkpoints
SAID_S, STOPPED_S = 5.0, 10.0  # after a halt: before a line names the last workers, before SIGSTOPped ones are killed

log = logging.getLogger(__name__)


def run_role(name: str, spec: RunSpec, memory: Memory, attempt: int) -> None:
    """Runs a role in its own process until its work is done or the parent stops it; `attempt` counts from 1."""
    kind: type[roles.Role]
    if name in memory.crew.names:
        kind = roles.ActorRole
    else:
        kind = roles.EvaluatorRole if name == EVALUATOR else roles.LearnerRole
    if not spec.acts_compiled:
        import torch  # noqa: F401
    with closing(Control.attach(memory.control)) as control:
        settled = roles.settle_torch(spec.config, name, control, attempt)
    del control  # its words would keep the mapping, and the lock, in what an environment forks
    if not settled:  # the environment may still import torch
        os.environ.setdefault("OMP_NUM_THREADS", str(spec.config.learner.threads))
    with closing(kind(name, spec, memory, attempt)) as role:
        role.work()
    log.info("%s is done", name)


class Remote:
    """A run's roles on other machines; this base class is for a run without any."""

    @property
    def done(self) -> bool:
        """Whether the remote actors have taken their shares of the steps and all their rows have arrived."""
        return True

    @property
    def unfinished(self) -> list[str]:
        """The names of remote learners that have not yet published and saved their last weights."""
        return []

    def tick(self) -> None:
        """Polls the other machines if that is due. Raises WorkerFailed if a remote worker failed for good."""


def supervisor_of(
    spec: RunSpec, memory: Memory, control: Control, names: Iterable[str], log_path: Callable[[str], Path | None],
    children: Children,
) -> Supervisor:  # fmt: skip
    """Returns a supervisor for the named workers of a run, before it starts them."""

    def start(name: str, attempt: int) -> Child:
        work = partial(run_role, name, spec, memory, attempt)
        prepare, early = partial(setup_worker, log_path(name)), spec.acts_compiled and name not in spec.learners
        return children.start_worker(name, work, prepare, early)

    settings = spec.config.supervision
    timeouts = dict.fromkeys(names, settings.actor_timeout)
    for name, policies in spec.learners.items():
        if name in timeouts:
            timeouts[name] = max(map(spec.config.timeout_of, policies))
    restarts = RestartPolicy(settings.max_restarts, settings.window, settings.backoff)
    return Supervisor(children, control, start, timeouts, restarts)


def start_all(supervisor: Supervisor, names: Iterable[str], interrupts: Interrupts, fallback: bool) -> bool:
    """Starts the named workers.

    If the system cannot start them, returns False if `fallback`, else raises MarlcoreError.
    """
    try:
        with suppress_failed_calls(errno.EINTR):  # after a signal, the caller looks at `interrupts`
            for name in names:
                if not interrupts.stopping:
                    supervisor.workers[name].start()
    except OSError as error:
        if error.errno is None:  # raised by a signal handler
            raise
        if not fallback:
            raise MarlcoreError(f"mode: no processes can be started here ({error})") from error
        log.warning("mode: no processes can be started here (%s); this process does all work, in turn", str(error))
        return False
    return True


def resume_actors(supervisor: Supervisor, actors: Iterable[str], control: Control) -> None:
    """Restarts finished actors whose shares of the steps have grown since."""
    for name in actors:
        if supervisor.workers[name].done and control.workers[name].load(STEPS) < control.notes[name].load(SHARE):
            supervisor.workers[name].resume()


def grace_of(spec: RunSpec) -> float:
    """Returns the seconds that learners have for writing their last checkpoints."""
    return max(GRACE_S, *map(spec.config.timeout_of, spec.names))


@dataclass
class _End:
    """Ends a run: tells the workers to end, and decides when their time for this is over."""

    supervisor: Supervisor
    control: Control
    monitor: Monitor
    interrupts: Interrupts
    grace_s: float
    since: float | None = None  # by time.monotonic
    halted: bool = False
    named: bool = False  # whether a line has named the last workers

    def finish(self) -> None:
        """Asks learners for their last checkpoints and the evaluator for its last evaluation."""
        self.since = time.monotonic()
        if self.interrupts.finishing:
            self.monitor.say_stopping()
        self.control.finish()

    def halt(self) -> None:
        """Stops the workers without a last evaluation: restarts no worker, and kills those still starting."""
        if self.halted:
            return
        self.halted, self.since = True, self.since or time.monotonic()
        if self.interrupts.stopping:
            self.monitor.say_stopping()
        self.control.stop()  # also cancels a last evaluation, which waits for learners
        self.supervisor.stand_down()
        for worker in self.supervisor.running:
            if not worker.ready:
                worker.end()

    def is_over(self, waiting: list[str]) -> bool:
        """Whether the time for ending is over; it is shorter if all awaited workers are stopped (SIGSTOP)."""
        late_s = 0.0 if self.since is None else time.monotonic() - self.since
        halted = self.halted and late_s > SAID_S and self._all_stopped(waiting)
        return late_s > (STOPPED_S if halted else self.grace_s)

    def _all_stopped(self, waiting: list[str]) -> bool:
        running = self.supervisor.running
        stopped = {worker.name for worker in running if worker.process and worker.process.is_stopped}
        if not self.named:
            self.named = True
            names = (f"{name}, which a signal has stopped" if name in stopped else name for name in waiting)
            self.monitor.say(f"still waiting for {'; '.join(names)}")
        return stopped.issuperset(waiting)


def run_async(
    supervisor: Supervisor, spec: RunSpec, memory: Memory, control: Control, monitor: Monitor, interrupts: Interrupts,
    remote: Remote,
) -> None:  # fmt: skip
    """Watches the workers until all have ended. Raises WorkerFailed if one failed for good or did not end in time.

    The run begins to end when the actors have taken all steps (without actors: when the learners have made all
    updates), or earlier on request. Learners then get time for last checkpoints, and the evaluator for a last
    evaluation; a learner that dies in this time is restarted. After a permanent failure, a signal or a stop, no worker
    is restarted, and workers that are still starting are killed. A second signal, at least a second after the first,
    kills all.
    """
    failed: WorkerFailed | None = None
    end, actors = _End(supervisor, control, monitor, interrupts, grace_of(spec)), memory.crew.names
    stepping = [supervisor.workers[name] for name in (spec.learners if spec.config.offline else actors)]
    while waiting := [*remote.unfinished, *(worker.name for worker in supervisor.unfinished)]:
        if interrupts.again:
            break
        if failed or interrupts.stopping:
            end.halt()
        elif end.since is None and (interrupts.finishing or (all(worker.done for worker in stepping) and remote.done)):
            end.finish()
        if end.is_over(waiting):
            if waiting[0] != EVALUATOR:  # the evaluator is the last worker
                failed = failed or WorkerFailed(waiting[0], "hang", f"it did not end within {end.grace_s:g} s")
            else:
                log.warning("evaluation: the last evaluation was ended, since it took more than %g s", end.grace_s)
            break
        try:
            supervisor.watch(POLL_S)
            remote.tick()
            if end.since is None:
                resume_actors(supervisor, actors, control)
        except WorkerFailed as error:
            failed = failed or error
        monitor.tick()
    if failed and not interrupts.stopping:
        raise failed
