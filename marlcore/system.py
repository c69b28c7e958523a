"""A training run: creates the shared memory, starts the workers, watches them, and leaves nothing behind."""

from __future__ import annotations

import pickle
import signal
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import algos
from .config import Config
from .control import READY, Control
from .curves import draw
from .envs import adapt
from .errors import WorkerFailed
from .learner import choose_device
from .params import ParameterStore
from .processes import Interrupts, WorkerProcess, stop_all, wait_any
from .progress import Progress, final_returns
from .protocols import Algorithm, Environment
from .replay import ReplayBuffer
from .rundir import RunDirectory, read_metrics
from .shm import sweep
from .spec import Field
from .telemetry import Metric, Telemetry
from .workers import (
    ActorWorker,
    AgentPlan,
    Blueprint,
    LearnerWorker,
    actor_names,
    build_network,
    learner_name,
    transition_spec,
)

__all__ = ["Result", "train"]

POLL_S = 0.1
GRACE_S = 60.0  # for the last checkpoints of a run that ended by itself
INTERRUPTED_GRACE_S = 2.0
RATE_ROWS = 200  # rows of env_steps_per_s in a run
SERIAL_ROUNDS = 50  # between looks at telemetry


@dataclass(frozen=True)
class Result:
    """What a run came to.

    Attributes:
        run_dir: where its metrics, checkpoints and curves are.
        steps: taken by all agents together.
        returns: by agent, the mean episode return over the last tenth of the run; no entry without an episode.
        lost_metrics: overwritten before they were written to metrics.csv.
    """

    run_dir: Path
    steps: int
    returns: dict[str, float]
    lost_metrics: int


def train(
    env_fn: Callable[[], Any],
    algorithm: Algorithm | str = "iqn",
    config: Config | None = None,
    *,
    progress: bool = True,
) -> Result:
    """Trains every agent of an environment, each with a replay, weights and a learner of its own.

    Args:
        env_fn: makes one environment copy: an `Environment`, or a PettingZoo or Gymnasium environment. It is called
            in other processes too, so in async mode it must be picklable, such as a function of a module.
        algorithm: "dqn", "iqn", or any `Algorithm`.
        config: the settings.
        progress: show a table of how it goes.

    Raises:
        ValueError, TypeError: bad input, in one line; nothing was started.
        WorkerFailed: a worker raised or died; it carries the child's traceback.
        SharedMemoryFull: /dev/shm has no room for the replays.
        KeyboardInterrupt, SystemExit: SIGINT or SIGTERM came; everything was stopped and written first.
    """
    config = config or Config()
    chosen = algos.make(algorithm) if isinstance(algorithm, str) else algorithm
    make_env = AdaptedEnv(env_fn)
    for device in (config.actor.device, config.learner.device):
        choose_device(device)
    if config.mode == "async":
        _check_picklable(env_fn=env_fn, algorithm=chosen)
    env = make_env()
    spaces = [(agent, env.observations[agent], env.actions[agent]) for agent in env.agents]
    env.close()
    sweep()
    with Interrupts() as interrupts:
        run_dir = Path(config.run_dir or time.strftime("runs/%Y%m%d-%H%M%S"))
        described = {"algorithm": type(chosen).__name__, "hyperparameters": vars(chosen), **config.to_dict()}
        with RunDirectory.create(run_dir, described) as run:
            steps, lost = _run(make_env, chosen, config, spaces, run, interrupts, progress)
        metrics = read_metrics(run.path / "metrics.csv")
        draw(metrics, run.path / "curves.png", f"{type(chosen).__name__}, seed {config.seed}")
    if interrupts.signum == signal.SIGINT:
        raise KeyboardInterrupt
    if interrupts.signum is not None:
        sys.exit(128 + interrupts.signum)
    return Result(run.path, steps, final_returns(metrics, config.total_steps), lost)


@dataclass(frozen=True)
class AdaptedEnv:
    """Makes environments that agents act in one after another, from whatever env_fn makes."""

    env_fn: Callable[[], Any]

    def __call__(self) -> Environment:
        return adapt(self.env_fn())


def _check_picklable(**things: Any) -> None:
    for name, thing in things.items():
        try:
            pickle.dumps(thing)
        except Exception as error:
            raise TypeError(
                f"{name}: expected something picklable for async mode, such as a function of a module, "
                f"got {thing!r} ({error})"
            ) from None


def _run(
    env_fn: Callable[[], Environment],
    algorithm: Algorithm,
    config: Config,
    spaces: list[tuple[str, Field, int]],
    run: RunDirectory,
    interrupts: Interrupts,
    show: bool,
) -> tuple[int, int]:
    """The steps taken and the metrics lost."""
    workers = [*actor_names(config), *(learner_name(agent) for agent, _, _ in spaces)]
    with ExitStack() as stack:
        control = Control.create(workers)
        stack.callback(control.close)
        telemetry = Telemetry.create(workers)
        stack.callback(telemetry.close)
        plans = [_create_agent(stack, algorithm, config, run, i, *space) for i, space in enumerate(spaces)]
        blueprint = Blueprint(
            env_fn, algorithm, config, tuple(plans), control.handle, telemetry.handle, time.monotonic()
        )
        table = stack.enter_context(Progress()) if show else None
        monitor = _Monitor(run, control, telemetry, table, config.total_steps, blueprint.began)
        stack.callback(monitor.tick)
        if config.mode == "serial":
            _run_serial(blueprint, monitor, interrupts)
        else:
            _run_async(blueprint, control, monitor, interrupts, run)
        monitor.tick()
        return control.steps, telemetry.lost


def _create_agent(
    stack: ExitStack,
    algorithm: Algorithm,
    config: Config,
    run: RunDirectory,
    index: int,
    agent: str,
    observation: Field,
    actions: int,
) -> AgentPlan:
    replay = ReplayBuffer.create(
        transition_spec(observation), config.replay.capacity, config.lanes, name=f"replay.{index}"
    )
    stack.callback(replay.close)
    network = build_network(algorithm, observation, actions, config, index)
    store = ParameterStore.create(
        network, mode=config.learner.publish_mode, extras={"epsilon": ()}, name=f"weights.{index}"
    )
    stack.callback(store.close)
    checkpoint = run.checkpoint_path(agent)
    return AgentPlan(agent, observation, actions, checkpoint, replay.handle, store.handle)


class _Monitor:
    """Moves metrics from shared memory to the run directory and to the screen."""

    def __init__(
        self,
        run: RunDirectory,
        control: Control,
        telemetry: Telemetry,
        table: Progress | None,
        total_steps: int,
        began: float,
    ) -> None:
        self._run = run
        self._control = control
        self._telemetry = telemetry
        self._table = table
        self._total = total_steps
        self._began = began
        self._rate_every = max(total_steps // RATE_ROWS, 1)
        self._rate_from = (0.0, 0)
        self._rate = 0.0

    def tick(self) -> None:
        for metric in self._telemetry.tail():
            self._record(metric)
        steps, now = self._control.steps, time.monotonic() - self._began
        since, before = self._rate_from
        if before // self._rate_every != steps // self._rate_every:
            self._rate = (steps - before) / max(now - since, 1e-9)
            self._rate_from = (now, steps)
            self._record(Metric(now, steps, "", "env_steps_per_s", self._rate))
            self._run.flush()
        if self._table is not None:
            self._table.tick(steps, self._total, self._rate)

    def _record(self, metric: Metric) -> None:
        self._run.record(metric)
        if self._table is not None:
            self._table.update(metric)


def _run_serial(blueprint: Blueprint, monitor: _Monitor, interrupts: Interrupts) -> None:
    """The workers' work in turn, in this process: the same objects, deterministic under a seed."""
    import torch

    config = blueprint.config
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(config.learner.threads)
        torch.manual_seed(config.seed)
        learners = [LearnerWorker(i, blueprint) for i in range(len(blueprint.agents))]
        actors = [ActorWorker(i, blueprint) for i in range(config.actor.processes)]
        for worker in [*learners, *actors]:
            stack.callback(worker.close)
        due, rounds = 0.0, 0
        while interrupts.signum is None and not all(actor.done for actor in actors):
            taken = sum(actor.step() for actor in actors if not actor.done)
            due += config.updates_per_step * taken / len(learners)
            while due >= 1.0:
                updated = [learner.step(wait_s=0.0) for learner in learners]
                due = due - 1.0 if any(updated) else 0.0
            rounds += 1
            if rounds % SERIAL_ROUNDS == 0:
                monitor.tick()
        for learner in learners:
            learner.finish()


def _run_async(
    blueprint: Blueprint, control: Control, monitor: _Monitor, interrupts: Interrupts, run: RunDirectory
) -> None:
    """A process for each worker, until the actors have taken all steps, one fails, or a signal comes."""
    processes: list[WorkerProcess] = []
    failed: WorkerFailed | None = None
    try:
        for name in control.workers:
            if interrupts.signum is None:
                processes.append(WorkerProcess(name, blueprint, run.log_path(name)))
        actors = processes[: blueprint.config.actor.processes]
        while interrupts.signum is None and failed is None and any(actor.running for actor in actors):
            wait_any(processes, POLL_S)
            monitor.tick()
            failed = _first_failure(processes)
    finally:
        control.stop()
        whole = interrupts.signum is None and failed is None and sys.exc_info()[0] is None
        starting = [p for p in processes if not whole and not control.workers[p.name].load(READY)]
        stop_all(starting, 0.0)
        others = [p for p in processes if p not in starting]
        deadline = time.monotonic() + (GRACE_S if whole else INTERRUPTED_GRACE_S)
        while any(p.running for p in others) and time.monotonic() < deadline:
            wait_any(others, POLL_S)
            monitor.tick()
        failed = failed or (_first_failure(others) if whole else None)
        stop_all(others, 0.0)
    if failed is not None and interrupts.signum is None:
        raise failed


def _first_failure(processes: list[WorkerProcess]) -> WorkerFailed | None:
    for process in processes:
        text = process.failure()
        if text is not None:
            return WorkerFailed(process.name, text)
    return None
