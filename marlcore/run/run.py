"""Does a training run in the calling thread or, as a `Run`, in a background thread."""

from __future__ import annotations

import atexit
import logging
import math
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from ..checks import check_timeout, printable
from ..config import BOTH
from ..errors import SegmentNotFound, TimedOut
from ..evaluation import LoadedPolicy, SavedRun, named, published_policy
from ..fixed import fixed
from ..processes import Children
from ..record import SKIPPED, RemoteCopy, Status, Table, each_metric, final_returns, plot_run
from ..self_play import plot_payoff
from .launch import Launch
from .session import Session
from .spec import warn_of_few_samples

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        run_dir: the directory of its metrics, checkpoints and curves.
        steps: the steps that all agents together have taken.
        updates: by policy, the updates of its learner.
        returns: by agent, the mean return of the episodes that ended in the last tenth of the run; if none ended then,
            of the last tenth of the agent's episodes, at least one; NaN if no episode of the agent ended.
        lost_metrics: metrics overwritten before they were written to metrics.csv.
        lost: by sink, metrics in metrics.csv that the sink has not taken: it was too slow, hung or raised.
        restarts: by worker, its restarts after it died, failed or hung.
        stopped: the reason why the run ended before it had taken total_steps; empty if it took all of them.
    """

    run_dir: Path
    steps: int
    updates: dict[str, int]
    returns: dict[str, float]
    lost_metrics: int
    lost: dict[str, int]
    restarts: dict[str, int]
    stopped: str = ""


def work(
    launch: Launch,
    children: Children,
    table: Table | None = None,
    begun: Callable[[Session], None] = lambda session: None,
) -> Result:
    """Does a run until it ends or `children.interrupts` stops it; calls `begun` once all input has been checked."""
    with _copied(launch) as follow:
        with children, ExitStack() as memory:
            session = Session(memory, launch, children, table)
            follow(session.directory.path)
            begun(session)
            session.work()
        return _result(session)


@contextmanager
def _copied(launch: Launch) -> Iterator[Callable[[Path], None]]:
    """Yields a function that starts copying a run's directory to the launch's remote address, if there is one."""
    if not launch.remote:
        yield lambda path: None
        return
    with RemoteCopy(launch.remote, launch.resume) as copy, ExitStack() as undo:
        if launch.resume is not None:
            undo.callback(shutil.rmtree, launch.resume)  # removes the local copy if the run fails before its start

        def follow(path: Path) -> None:
            undo.pop_all()
            copy.follow(path)

        yield follow


@fixed()
class Run:
    """A run in the background, as `start` returns it; as a context manager, it stops the run at the end of the block.

    Attributes:
        run_dir: the directory of its metrics, checkpoints and curves.
        env_fn: makes the run's environments.
    """

    def __init__(self, launch: Launch, children: Children, table: Table | None = None) -> None:
        self.env_fn = launch.spec.env_fn
        self._launch = launch
        self._interrupts = children.interrupts
        self._begun: Future[Session] = Future()
        self._result: Future[Result] = Future()
        self._thread = threading.Thread(target=self._work, args=(children, table), name="marlcore-run", daemon=True)
        self._thread.start()
        atexit.register(self.close)
        if self._begun.exception() is not None:
            self.wait()  # raises it
        self._session = self._begun.result()
        self.run_dir: Path = self._session.directory.path

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until the run ends.

        Raises: TimeoutError: the run has not ended in `timeout` seconds. WorkerFailed or another error that ended it.
        """
        check_timeout(timeout)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimedOut(f"{self.run_dir}: the run has not ended after {timeout} seconds")
        atexit.unregister(self.close)
        return self._result.result()

    def stop(self) -> None:
        """Asks the run to write its checkpoints and end; `wait` blocks until the end. Repeated calls are harmless."""
        self._interrupts.stop("the program stopped the run")

    def hurry(self) -> None:
        """Ends a run at once, without last checkpoints, after `stop` has asked it to end."""
        self._interrupts.again = True

    @property
    def done(self) -> bool:
        """Whether the run has ended; `wait` then returns or raises at once."""
        return self._result.done()

    def status(self) -> Status:
        """Returns the run's state, at most a second old; after its end, the last state."""
        return replace(self._session.monitor.status, running=self._thread.is_alive())

    def policy(self, name: str) -> LoadedPolicy:
        """Returns a policy with its newest weights; waits for the first weights. `name` is the policy's or an agent's.

        Raises: ValueError: the run has no such policy. TimeoutError: the policy has no weights after a minute.
        """
        spec, memory = self._launch.spec, self._session.memory
        policy = named(name, spec.policies)
        try:
            return published_policy(policy, memory.weights[policy.name], spec.config)
        except SegmentNotFound:  # the run has ended
            return self.saved.policy(name)

    @property
    def saved(self) -> SavedRun:
        """The run's policies with the weights of its checkpoints; nothing is unpickled."""
        return SavedRun(self.run_dir, self._launch.spec.policies, self._launch.spec.config)

    def _work(self, children: Children, table: Table | None) -> None:
        try:
            result = work(self._launch, children, table, self._begun.set_result)
            self._interrupts.deliver()
            self._result.set_result(result)
        except BaseException as error:
            for future in (self._begun, self._result):
                if not future.done():
                    future.set_exception(error)

    def close(self) -> None:
        """Stops the run and waits for its end; does not raise the run's error, which `wait` raises."""
        self.stop()
        self._thread.join()
        atexit.unregister(self.close)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.close()
        if kind is None:  # otherwise the block's own error matters more
            self.wait()

    def __repr__(self) -> str:
        return f"<Run {self.run_dir}, {'running' if self._thread.is_alive() else 'ended'}>"


def _result(session: Session) -> Result:
    config, policies = session.spec.config, session.spec.policies
    status, run_dir = session.monitor.status, session.directory.path
    warn_of_few_samples(session.spec, status.steps, status.updates)
    if skipped := int(status.metrics.get(("", SKIPPED), 0)):
        log.warning(
            "evaluation: %d evaluations, due every %d steps, were skipped, since training did not wait for them; "
            "evaluation.wait makes it wait", skipped, config.evaluation.interval,
        )  # fmt: skip
    metrics = run_dir / "metrics.csv"
    if session.launch.plots:
        plot_run(each_metric(metrics), run_dir / "curves.png", session.title)
    for table in sorted(run_dir.glob("payoff*.json")) if session.launch.plots else ():
        plot_payoff(table, table.with_suffix(".png"), session.title)
    returns = final_returns(each_metric(metrics), config.total_steps, chain(*(policy.agents for policy in policies)))
    learning = [agent for agent in returns if config.self_play.side in (BOTH, agent)]
    if not config.offline and (endless := [agent for agent in learning if math.isnan(returns[agent])]):
        log.warning("returns: NaN for %s: no episode ended in %d steps", printable(", ".join(endless)), status.steps)
    if lost := session.telemetry.lost:
        log.warning("metrics: %d were overwritten before they were written to metrics.csv", lost)
    stopped = (session.interrupts.reason or "") if status.steps < config.total_steps else ""
    return Result(run_dir, status.steps, status.updates, returns, lost, session.sinks.lost, status.restarts, stopped)
