"""A training run: `train` blocks, `start` returns a `Run`; `train_seeds` repeats a run under several seeds."""

from __future__ import annotations

import atexit
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..checks import absolute, check_timeout, check_whole
from ..closing import ClosedAfterError
from ..errors import SegmentNotFound, TimedOut
from ..processes import Children, Interrupts
from ..replay import ReplayBuffer
from ..spaces import Spaces
from .config import Config
from .evaluation import LoadedPolicy, SavedRun, published_policy
from .offline import OfflineData
from .record import (
    RUNS,
    Callback,
    InitFrom,
    Progress,
    SharedProgress,
    Status,
    Table,
    final_returns,
    plot_run,
    plot_runs,
    read_config,
    read_metrics,
)
from .run_input import Algorithms, RunInput, warn_of_few_samples
from .self_play import PAYOFF, plot_payoff
from .session import Session

POLL_S = 0.1  # between looks at runs beside each other

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        run_dir: the directory of its metrics, checkpoints and curves.
        steps: taken by all agents together.
        updates: by policy, the updates of its learner.
        returns: by agent, the mean return of the episodes that ended in the last tenth of the run; if none did, of the
            last tenth of the agent's episodes, at least one; NaN if no episode of the agent ended.
        lost_metrics: metrics overwritten before they were written to metrics.csv.
        lost: by sink, metrics in metrics.csv that the sink has not taken: it was too slow, hung or raised.
        restarts: by worker, its restarts after it died, failed or hung.
        stopped: the reason why the run ended before it had taken total_steps; empty if it took them.
    """

    run_dir: Path
    steps: int
    updates: dict[str, int]
    returns: dict[str, float]
    lost_metrics: int
    lost: dict[str, int]
    restarts: dict[str, int]
    stopped: str = ""


def train(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms = "iqn",
    config: Config | None = None,
    *,
    progress: bool = True,
    resume: str | Path | None = None,
    callback: Callback | None = None,
    init_from: InitFrom | None = None,
    init_strict: bool = True,
) -> Result:
    """Trains the policies of an environment's agents, each with its own replay, weights and learner.

    Args:
        env_fn: makes one environment copy: an `Environment`, or a PettingZoo or Gymnasium environment. Or it makes
            several copies at once, whose number then replaces config.actor.envs: a Gymnasium vector environment,
            EnvPool. Other processes call it too, so in async mode cloudpickle must be able to pickle it: any function
            or class, a lambda, a partial. Or a name for `envs.make`: "gymnasium:CartPole-v1".
        algorithm: any `Algorithm`, or the name of one with its default hyperparameters: "dqn", "iqn", "r2d2",
            "module:Class"; or a dict of these by policy, see config.policies.
        config: the settings.
        progress: show a table of the run's progress, and notices of long waits, on standard error.
        resume: the directory of a run to continue from its last checkpoints, instead of config.run_dir. Its settings
            become those of `config`, which may differ from its earlier ones, and so may hyperparameters, except those
            on which its checkpoints and saved replays depend: these are refused by name. `total_steps` counts from the
            run's beginning, and must exceed the steps that the run has taken. Nothing of the directory is executed
            (`marlcore train --resume` does: it imports what config.json names).
        callback: a function that is called with each `Metric` (time_s, step, agent, name, value), or an object with any
            of the methods `on_metric(metric)`, `on_evaluation(evaluation)` and `on_checkpoint(checkpoint)`, which take
            a `Metric`, an `EvaluationEvent` and a `CheckpointEvent`. A thread of this process calls it. If it returns
            `Stop`, or raises `StopRun`, the run ends in order, with a last evaluation; any other exception ends it
            without one, and `train` raises it. It delays nobody: metrics that it is too slow for are dropped, and
            counted in `Result.lost`; evaluations and checkpoints never are.
        init_from: weights from which the policies start, with new optimizers, counters and schedules: the directory of
            a run, whose last checkpoint of the same policy is taken, or of its only one; a checkpoint of a run; a
            `state_dict` of the whole network; or a dict of these by policy. No code of it is executed.
        init_strict: refuse weights that do not fit the network in name and shape; False leaves them out, and the log
            says which.

    A run that fails before its first step leaves no directory.

    Raises:
        ValueError, TypeError: bad input, in one line; nothing was started.
        WorkerFailed: a worker raised, died or hung more often than `config.supervision` allows; it carries the
            tracebacks, and says whether the worker's environment raised.
        SharedMemoryFull: /dev/shm has no room for the replays.
        KeyboardInterrupt, SystemExit: SIGINT, or SIGTERM or SIGHUP, came; the run first stopped and wrote everything.
            The message of KeyboardInterrupt is the run's directory, if it has one.
        Whatever the callback raises, except `StopRun`.
    """
    with _children(config) as children:
        return _worked(
            RunInput.checked(env_fn, algorithm, config, resume, callback, progress, init_from, init_strict), children
        )


def train_offline(
    replay: ReplayBuffer | Mapping[str, ReplayBuffer],
    algorithm: Algorithms,
    updates: int,
    env_fn: Callable[[], Any] | str | Spaces,
    config: Config | None = None,
    *,
    progress: bool = True,
    resume: str | Path | None = None,
    callback: Callback | None = None,
    init_from: InitFrom | None = None,
    init_strict: bool = True,
) -> Result:
    """Trains a policy on recorded transitions, without actors.

    The run is as `train` makes it: its directory, checkpoints, metrics, evaluations, `load_policy`, `marlcore eval`.
    An update counts as a step: of schedules, of metrics, of `evaluation.interval`, of `Result.steps`.

    Args:
        replay: the transitions, as `ReplayBuffer.from_episodes` makes it; any without a limiter will do, and writers
            may add to it. For an environment with several policies a dict of one for each.
        algorithm: an off-policy one, or its name: "bc", "cql", "td3bc", or "dqn", "iqn", "r2d2", "td3", "sac". The
            replay's spec must be that of its `transition(spaces)`; further extras are ignored.
        updates: of each policy; with `resume` those before included.
        env_fn: as for `train`; it gives the spaces, and plays the evaluations. Or the spaces alone, if there is no
            environment.
        config: the settings; None: the defaults with learner.n_step=1. Those of acting, of the warm-up and of the
            replay's size do not apply, and must be the defaults.
        progress, resume, callback, init_from, init_strict: as for `train`.

    `Result.returns` are NaN, since no actor plays.

    Raises: as `train`; ValueError also where the replay's spec differs, NotEnoughData where no batch can be drawn.
    """
    data = OfflineData(replay, updates)
    with _children(config) as children:
        return _worked(
            RunInput.checked(env_fn, algorithm, config, resume, callback, progress, init_from, init_strict, data),
            children,
        )


def _children(config: Config | None) -> Children:
    """The processes of a run. The server that forks them imports what they need while the run's input is checked."""
    children = Children(interrupts=Interrupts())
    if getattr(config, "mode", "async") == "async":
        with suppress(OSError):  # a run that can start no processes says so, or works without
            children.server.begin()
    return children


def _worked(run_input: RunInput, children: Children) -> Result:
    """Makes a run; raises what a signal came for, or what the callback raised."""
    with children.interrupts as interrupts:
        with Session(run_input, children) as session:
            session.work()
        result = _result(session)
    interrupts.deliver(str(result.run_dir) if result.run_dir.exists() else "")
    return result


def start(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms = "iqn",
    config: Config | None = None,
    *,
    progress: bool = False,
    resume: str | Path | None = None,
    callback: Callback | None = None,
    init_from: InitFrom | None = None,
    init_strict: bool = True,
) -> Run:
    """Starts a run in the background, watched by a thread of this process; the arguments are `train`'s.

    No signal stops it: the program decides, by `stop` or by leaving the run's `with` block. The interpreter's exit
    stops it too.

    Raises: as `train`, for everything that fails before the run's processes start; `Run.wait` raises the rest.
    """
    children = _children(config)
    with ClosedAfterError(children):
        run_input = RunInput.checked(env_fn, algorithm, config, resume, callback, progress, init_from, init_strict)
        return Run(run_input, children)


class Run:
    """A run in the background, made by `start`. A context manager that stops it at the end of the block.

    Attributes:
        run_dir: the directory of its metrics, checkpoints and curves.
        env_fn: makes its environments.
    """

    def __init__(self, run_input: RunInput, children: Children, table: Table | None = None) -> None:
        self.env_fn = run_input.env_fn
        self._input = run_input
        self._interrupts = children.interrupts
        self._begun: Future[Session] = Future()
        self._result: Future[Result] = Future()
        self._thread = threading.Thread(target=self._work, args=(children, table), name="marlcore-run", daemon=True)
        self._thread.start()
        atexit.register(self._end)
        if self._begun.exception() is not None:
            self.wait()  # raises it
        self._session = self._begun.result()
        self.run_dir: Path = self._session.directory.path

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until the run ends.

        Raises: TimeoutError: it goes on after `timeout` seconds. WorkerFailed and others: the error that ended it.
        """
        check_timeout(timeout)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimedOut(f"{self.run_dir}: the run goes on after {timeout} seconds")
        atexit.unregister(self._end)
        return self._result.result()

    def stop(self) -> None:
        """Makes the run write its checkpoints and end; `wait` for that. Repeated calls are harmless."""
        self._interrupts.stop("the program stopped the run")

    def status(self) -> Status:
        """The run's state, at most a second old; after its end, the last one."""
        return replace(self._session.monitor.status, running=self._thread.is_alive())

    def policy(self, name: str) -> LoadedPolicy:
        """The newest weights of a policy, given by its name or by one of its agents; waits for its first ones.

        Raises: ValueError: the run has no such policy. TimeoutError: it has no weights after a minute.
        """
        try:
            return published_policy(self._session.blueprint, name)
        except SegmentNotFound:  # the run has ended
            return self.saved.policy(name)

    @property
    def saved(self) -> SavedRun:
        """Its policies with the weights of its checkpoints; nothing is unpickled."""
        return SavedRun(self.run_dir, self._input.policies, self._input.config)

    def _work(self, children: Children, table: Table | None) -> None:
        try:
            with children, Session(self._input, children, table) as session:
                self._begun.set_result(session)
                session.work()
            result = _result(session)
            self._interrupts.deliver()
            self._result.set_result(result)
        except BaseException as error:
            for future in (self._begun, self._result):
                if not future.done():
                    future.set_exception(error)

    def _end(self) -> None:
        self.stop()
        self._thread.join()
        atexit.unregister(self._end)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end()
        if kind is None:  # otherwise the block's own error matters more
            self.wait()

    def __repr__(self) -> str:
        return f"<Run {self.run_dir}, {'running' if self._thread.is_alive() else 'ended'}>"


def _result(session: Session) -> Result:
    """The outcome of an ended session, whose curves it plots."""
    config, policies = session.input.config, session.input.policies
    status, run_dir = session.monitor.status, session.directory.path
    warn_of_few_samples(session.input, status.steps, status.updates)
    metrics = read_metrics(run_dir / "metrics.csv")
    algorithms = ", ".join(dict.fromkeys(type(policy.algorithm).__name__ for policy in policies))
    title = f"{session.described['env']}, {algorithms}, seed {config.seed}"
    plot_run(metrics, run_dir / "curves.png", title)
    if (run_dir / PAYOFF).exists():
        plot_payoff(run_dir / PAYOFF, run_dir / "payoff.png", title)
    returns = final_returns(metrics, config.total_steps, chain(*(policy.agents for policy in policies)))
    if not config.offline and (endless := [agent for agent, mean in returns.items() if math.isnan(mean)]):
        log.warning("returns: NaN for %s: no episode ended in %d steps", ", ".join(endless), status.steps)
    lost, restarts = session.telemetry.lost, status.restarts
    stopped = (session.interrupts.reason or "") if status.steps < config.total_steps else ""
    return Result(run_dir, status.steps, status.updates, returns, lost, session.sinks.lost, restarts, stopped)


def train_seeds(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms,
    config: Config,
    seeds: Sequence[int],
    *,
    parallel: int = 1,
    progress: bool = True,
    init_from: InitFrom | None = None,
    init_strict: bool = True,
) -> list[Result]:
    """Trains once with each seed, `parallel` runs at a time, which share a fork server and a table of progress.

    The runs' directories are config.run_dir/seed-SEED, by default in runs/<date and time>-seeds; beside them,
    curves.png shows the mean of the runs that have ended, and a band from the lowest to the highest. If a run fails,
    the others are stopped; the error is raised when they have ended.

    Raises: as `train`; ValueError also if a seed comes twice, or if runs in serial mode, which all work in this
        process, are to run in parallel.
    """
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds: expected different ones, got {list(seeds)}")
    check_whole("parallel", parallel)
    if parallel > 1 and config.mode == "serial":
        raise ValueError(f"parallel: expected 1 in serial mode, whose runs work in this process, got {parallel}")
    folder = absolute(config.run_dir or f"{RUNS}/{time.strftime('%Y%m%d-%H%M%S')}-seeds")
    config = config.with_absolute_paths()
    seeded = {seed: replace(config, seed=seed, run_dir=str(folder / f"seed-{seed}")) for seed in seeds}
    running, results = dict[int, Run](), dict[int, Result]()
    with ExitStack() as stack:
        children = stack.enter_context(_children(config))
        waiting = {
            seed: RunInput.checked(env_fn, algorithm, own, None, None, progress, init_from, init_strict)
            for seed, own in seeded.items()
        }
        interrupts = stack.enter_context(children.interrupts)
        table = None
        if progress:
            table = SharedProgress(stack.enter_context(Progress()), len(seeds) * config.total_steps)
        stack.callback(_end_all, running)  # the runs beside one that fails
        while waiting or running:
            if interrupts.stopping:
                waiting.clear()
                for run in running.values():
                    run.stop()
                    run._interrupts.again = interrupts.again
            while waiting and len(running) < parallel:
                seed = next(iter(waiting))
                part = table.part(f"seed {seed}") if table else None
                running[seed] = Run(waiting.pop(seed), Children(server=children.server), part)
            time.sleep(POLL_S)
            for seed in [seed for seed, run in running.items() if run._result.done()]:
                results[seed] = running[seed].wait()
                del running[seed]
                if table:
                    table.end(f"seed {seed}")
                _plot_ended(results, folder)
    interrupts.deliver(str(folder) if folder.exists() else "")
    return [results[seed] for seed in seeds]


def _end_all(running: Mapping[int, Run]) -> None:
    for run in running.values():
        run.stop()  # all before waiting for the first
    for run in running.values():
        run._end()


def _plot_ended(results: Mapping[int, Result], folder: Path) -> None:
    """Plots the mean and the band of the runs that have ended; one that was stopped before its first step has none."""
    ended = {seed: result.run_dir for seed, result in results.items() if result.run_dir.exists()}
    if ended:
        described = read_config(next(iter(ended.values())))
        title = f"{described['env']}, {described['algorithm']}, seeds {', '.join(map(str, ended))}"
        plot_runs([read_metrics(path / "metrics.csv") for path in ended.values()], folder / "curves.png", title)
