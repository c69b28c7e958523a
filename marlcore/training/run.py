"""A training run: `train` blocks, `start` returns a `Run`."""

from __future__ import annotations

import atexit
import logging
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..checks import absolute, check_timeout
from ..envs import NamedEnvironment, factory, vectorize
from ..envs.joint import JointObservations
from ..errors import SegmentNotFound, TimedOut
from ..interfaces import Algorithm, QueueSource, ReplaySource
from ..notices import say, shown_with
from ..processes import Interrupts, Metric, check_picklable
from .after import LoadedPolicy, SavedRun, published_policy
from .config import AssignedPolicy, Config, assign, check_applied, source_of
from .loops import choose_device
from .record import RUNS, Status, final_returns, plot_run, read_metrics
from .self_play import FILE as PAYOFF
from .self_play import check_self_play, draw_payoff, policies_in_self_play
from .session import Session, Setup
from .warmup import compile_before_a_run

Algorithms = Algorithm | str | Mapping[str, Algorithm | str]

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
    """

    run_dir: Path
    steps: int
    updates: dict[str, int]
    returns: dict[str, float]
    lost_metrics: int
    lost: dict[str, int]
    restarts: dict[str, int]


def train(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms = "iqn",
    config: Config | None = None,
    *,
    progress: bool = True,
    resume: str | Path | None = None,
    callback: Callable[[Metric], object] | None = None,
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
        resume: the directory of a run to continue from its last checkpoints, instead of config.run_dir. The algorithm
            and the configuration must match it; `total_steps` counts from the run's beginning, and must exceed the
            steps that the run has taken. Nothing of the directory is executed (`marlcore train --resume` does: it
            imports what config.json names).
        callback: called with each `Metric` (time_s, step, agent, name, value) in this process, on a thread of its own.
            It delays nobody: metrics that it is too slow for are dropped, and counted in `Result.lost`. If it raises,
            the log says so, and it is not called again.

    A run that fails before its first step leaves no directory.

    Raises:
        ValueError, TypeError: bad input, in one line; nothing was started.
        WorkerFailed: a worker raised, died or hung more often than `config.supervision` allows; it carries the
            tracebacks, and says whether the worker's environment raised.
        SharedMemoryFull: /dev/shm has no room for the replays.
        KeyboardInterrupt, SystemExit: SIGINT, or SIGTERM or SIGHUP, came; the run first stopped and wrote everything.
            The message of KeyboardInterrupt is the run's directory, if it has one.
    """
    setup = _checked(env_fn, algorithm, config, resume, callback, progress)
    with Interrupts() as interrupts:
        with Session(setup, interrupts, progress) as session:
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
    callback: Callable[[Metric], object] | None = None,
) -> Run:
    """Starts a run in the background, watched by a thread of this process; the arguments are `train`'s.

    No signal stops it: the program decides, by `stop` or by leaving the run's `with` block. The interpreter's exit
    stops it too.

    Raises: as `train`, for everything that fails before the run's processes start; `Run.wait` raises the rest.
    """
    return Run(_checked(env_fn, algorithm, config, resume, callback, progress), progress)


class Run:
    """A run in the background, made by `start`. A context manager that stops it at the end of the block.

    Attributes:
        run_dir: the directory of its metrics, checkpoints and curves.
        env_fn: makes its environments.
    """

    def __init__(self, setup: Setup, progress: bool) -> None:
        self.env_fn = setup.env_fn
        self._setup = setup
        self._interrupts = Interrupts()
        self._begun = threading.Event()
        self._session: Session | None = None
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, args=(progress,), name="marlcore-run", daemon=True)
        self._thread.start()
        atexit.register(self._end)
        self._begun.wait()
        if self._session is None:
            self.wait()  # raises what was wrong
        assert self._session is not None
        self.run_dir: Path = self._session.run.path

    def wait(self, timeout: float | None = None) -> Result:
        """Waits until the run ends.

        Raises: TimeoutError: it goes on after `timeout` seconds. WorkerFailed and others: the error that ended it.
        """
        check_timeout(timeout)
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimedOut(f"{self.run_dir}: the run goes on after {timeout} seconds")
        atexit.unregister(self._end)
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    def stop(self) -> None:
        """Makes the run write its checkpoints and end; `wait` for that. Repeated calls are harmless."""
        self._interrupts.stop()

    def status(self) -> Status:
        """The run's state, at most a second old; after its end, the last one."""
        assert self._session is not None
        return replace(self._session.monitor.status, running=self._thread.is_alive())

    def policy(self, name: str) -> LoadedPolicy:
        """The newest weights of a policy, given by its name or by one of its agents; waits for its first ones.

        Raises: ValueError: the run has no such policy. TimeoutError: it has no weights after a minute.
        """
        assert self._session is not None
        try:
            return published_policy(self._session.blueprint, name)
        except SegmentNotFound:  # the run has ended
            return self.saved.policy(name)

    @property
    def saved(self) -> SavedRun:
        """Its policies with the weights of its checkpoints; nothing is unpickled."""
        return SavedRun(self.run_dir, self._setup.policies, self._setup.config)

    def _work(self, progress: bool) -> None:
        try:
            with Session(self._setup, self._interrupts, progress) as session:
                self._session = session
                self._begun.set()
                session.work()
            self._result = _result(session)
        except BaseException as error:  # `wait` raises it
            self._error = error
        finally:
            self._begun.set()

    def _end(self) -> None:
        self.stop()
        self._thread.join()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self.stop()
        self._thread.join()
        if kind is None:  # otherwise the block's own error matters more
            self.wait()

    def __repr__(self) -> str:
        return f"<Run {self.run_dir}, {'running' if self._thread.is_alive() else 'ended'}>"


def _checked(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithms,
    config: Config | None,
    resume: str | Path | None,
    callback: Callable[[Metric], object] | None,
    progress: bool,
) -> Setup:
    """The arguments of `train` for a session; compiles the kernels if they never were.

    Raises: ValueError, TypeError: bad input, in one line.
    """
    if not isinstance(config, Config | None):
        raise TypeError(f"config: expected a Config or None, got {config!r}")
    if callback is not None and not callable(callback):
        raise TypeError(f"callback: expected a function of a Metric or None, got {callback!r}")
    config = (config or Config()).with_absolute_paths()  # first: an environment may change the working directory
    resume = None if resume is None else absolute(resume)
    runs = absolute(RUNS) if resume is None and config.run_dir is None else Path(RUNS)
    with shown_with(progress):
        make_env, policies, config = _assigned(factory(env_fn), algorithm, config)
        for texts in dict.fromkeys(policy.spaces.texts for policy in policies):
            if texts:
                say(f"observations: left out {', '.join(texts)}, since no network takes text; a wrapper may encode it")
        names = [policy.name for policy in policies]
        if wrong := config.learners.keys() - names:
            raise ValueError(f"learners: expected the policies {names}, got {min(wrong)!r}")
        for policy in policies:
            choose_device(config.learner_of(policy.name).device)
            if isinstance(source_of(policy, config), ReplaySource):
                config.check_rows(policy.name, len(policy.agents))
        check_applied(policies, config)
        if config.self_play.pool:
            check_self_play(config, policies[0])
        if config.mode == "async":
            check_picklable(env_fn=make_env, algorithm=[policy.algorithm for policy in policies])
        _warn_of_short_run(config, policies)
        compile_before_a_run()
    return Setup(make_env, policies, config, runs, resume, callback)


def _assigned(
    make_env: Callable[[], Any], algorithm: Algorithms, config: Config
) -> tuple[Callable[[], Any], tuple[AssignedPolicy, ...], Config]:
    """The policies; the environment as they observe it, and the settings with what follows from it."""
    if config.replay.stack is None:
        stack = make_env.stack if isinstance(make_env, NamedEnvironment) else 1
        config = replace(config, replay=replace(config.replay, stack=stack))
    choose_device(config.actor.device)
    with closing(vectorize(make_env, 1)) as env:
        if config.self_play.pool:
            config = replace(config, policies=policies_in_self_play(config, env.agents))
        policies = assign(env.spaces, config.policies, algorithm, config.replay.frames)
        if env.copies > 1:  # a vector environment has its own number of copies
            config = replace(config, actor=replace(config.actor, envs=env.copies))
    joint = [policy.agents for policy in policies if getattr(policy.algorithm, "wants_joint", False)]
    if joint:
        make_env = JointObservations(make_env, tuple(chain(*joint)))
        make_env().close()  # raises ValueError where the environment is of a kind without them
        with closing(vectorize(make_env, 1)) as env:
            policies = assign(env.spaces, config.policies, algorithm, config.replay.frames)
    return make_env, policies, config


def _result(session: Session) -> Result:
    """The outcome of an ended session, whose curves it plots."""
    config, policies = session.setup.config, session.setup.policies
    status, run_dir = session.monitor.status, session.run.path
    _warn_of_few_samples(config, policies, status.steps, status.updates)
    metrics = read_metrics(run_dir / "metrics.csv")
    algorithms = ", ".join(dict.fromkeys(type(policy.algorithm).__name__ for policy in policies))
    title = f"{session.described['env']}, {algorithms}, seed {config.seed}"
    plot_run(metrics, run_dir / "curves.png", title)
    if (run_dir / PAYOFF).exists():
        draw_payoff(run_dir / PAYOFF, run_dir / "payoff.png", title)
    returns = final_returns(metrics, config.total_steps, chain(*(policy.agents for policy in policies)))
    if endless := [agent for agent, mean in returns.items() if math.isnan(mean)]:
        log.warning("returns: NaN for %s: no episode ended in %d steps", ", ".join(endless), status.steps)
    return Result(
        run_dir, status.steps, status.updates, returns, session.telemetry.lost, session.sinks.lost, status.restarts
    )


def _steps_of(policy: AssignedPolicy, policies: tuple[AssignedPolicy, ...], steps: float) -> float:
    """A policy's part of a run's steps, if every agent acts equally often."""
    return steps * len(policy.agents) / sum(len(policy.agents) for policy in policies)


def _warn_of_few_samples(
    config: Config, policies: tuple[AssignedPolicy, ...], steps: int, updates: Mapping[str, int]
) -> None:
    """Warns if a free run of `steps` steps drew each transition of a policy less than once on average."""
    for policy in policies:
        inserted, learner = _steps_of(policy, policies, steps), config.learner_of(policy.name)
        queued = isinstance(source_of(policy, config), QueueSource)  # which reads each transition once
        if queued or config.updates_per_step is not None or inserted <= learner.warmup:
            continue
        ratio = updates[policy.name] * learner.batch_size / inserted
        if ratio < 1.0:
            log.warning(
                "updates_per_step: %s trained on %.2g samples for each of its steps, since the run was free; "
                "a number, such as %g, holds the ratio",
                policy.name, ratio, Config.updates_per_step,
            )  # fmt: skip


def _warn_of_short_run(config: Config, policies: tuple[AssignedPolicy, ...]) -> None:
    """Warns if a run ends before the warm-up of a replay, or before a queue's first batch."""
    for policy in policies:
        steps, source = _steps_of(policy, policies, config.total_steps), source_of(policy, config)
        label, needed = "learner.warmup", config.learner_of(policy.name).warmup
        if isinstance(source, QueueSource):
            label, needed = "the algorithm's batch_size", source.batch_size * (source.length or 1)
        if steps <= needed:
            log.warning(
                "%s: %s takes %s of the %d steps, and learns only after %d: it will learn nothing",
                label, policy.name, f"{steps:.1f}".removesuffix(".0"), config.total_steps, needed,
            )  # fmt: skip
