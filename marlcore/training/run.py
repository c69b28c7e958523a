"""A training run: creates the shared memory, starts and watches the workers, and removes everything at the end."""

from __future__ import annotations

import dataclasses
import logging
import os
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from .. import algos
from ..envs import adapt, factory
from ..errors import MarlcoreError, WorkerFailed
from ..interfaces import Algorithm, Environment
from ..processes import (
    NAME_BYTES,
    PID,
    PRELOAD,
    READY,
    RESTARTS,
    STEPS,
    UPDATES,
    Control,
    ForkServer,
    Interrupts,
    Supervisor,
    Telemetry,
    WorkerProcess,
    check_picklable,
    reason_of,
)
from ..replay import ReplayBuffer
from ..spec import Field, TransitionSpec
from ..weights import ParameterStore
from .config import Config
from .curves import draw
from .describe import check_resumed, describe
from .learner import choose_device
from .monitor import Monitor
from .names import actor_names, learner_name
from .progress import Progress, final_returns
from .roles import (
    ActorWorker,
    AgentPlan,
    Blueprint,
    LearnerWorker,
    Worker,
    build_network,
    load_checkpoint,
    run_worker,
    transition_spec,
)
from .run_directory import RunDirectory, read_metrics, setup_logging
from .warmup import compile_before_a_run

__all__ = ["Result", "train"]

POLL_S = 0.1
GRACE_S = 60.0  # least time for the last checkpoints
SERIAL_ROUNDS = 50  # between looks at telemetry
STOPPING = "stopping: writing checkpoints ..."

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Result:
    """The outcome of a run.

    Attributes:
        run_dir: the directory of its metrics, checkpoints and curves.
        steps: taken by all agents together.
        updates: by agent, the updates of its learner.
        returns: by agent, the mean episode return over the last tenth of the run; no entry without an episode.
        lost_metrics: metrics overwritten before they were written to metrics.csv.
        restarts: by worker, its restarts after it died, failed or hung.
    """

    run_dir: Path
    steps: int
    updates: dict[str, int]
    returns: dict[str, float]
    lost_metrics: int
    restarts: dict[str, int]


def train(
    env_fn: Callable[[], Any] | str,
    algorithm: Algorithm | str = "iqn",
    config: Config | None = None,
    *,
    progress: bool = True,
    resume: str | Path | None = None,
) -> Result:
    """Trains every agent of an environment, each with its own replay, weights and learner.

    Args:
        env_fn: makes one environment copy: an `Environment`, or a PettingZoo or Gymnasium environment. Other processes
            call it too, so in async mode cloudpickle must be able to pickle it: any function or class, a lambda, a
            partial. Or a name for `envs.make`: "gymnasium:CartPole-v1".
        algorithm: any `Algorithm`, or the name of one with its default hyperparameters: "dqn", "iqn", "module:Class".
        config: the settings.
        progress: show a table of the run's progress.
        resume: the directory of a run to continue from its last checkpoints, instead of config.run_dir. The algorithm
            and the configuration must match it; `total_steps` counts from the run's beginning, and must exceed the
            steps that the run has taken.

    A run that fails before its first step leaves no directory.

    Raises:
        ValueError, TypeError: bad input, in one line; nothing was started.
        WorkerFailed: a worker raised, died or hung more often than `config.supervision` allows; it carries the
            tracebacks, and says whether the worker's environment raised.
        SharedMemoryFull: /dev/shm has no room for the replays.
        KeyboardInterrupt, SystemExit: SIGINT, or SIGTERM or SIGHUP, came; the run first stopped and wrote everything.
            The message of KeyboardInterrupt is the run's directory, if it has one.
    """
    if not isinstance(config, Config | None):
        raise TypeError(f"config: expected a Config or None, got {config!r}")
    config = config or Config()
    chosen = _chosen(algorithm)
    make_env = AdaptedEnv(factory(env_fn))
    for device in (config.actor.device, config.learner.device):
        choose_device(device)
    if config.mode == "async":
        check_picklable(env_fn=make_env.env_fn, algorithm=chosen)
    env = make_env()
    spaces = [(agent, env.observations[agent], env.actions[agent]) for agent in env.agents]
    env.close()
    for agent, _, _ in spaces:
        if len(agent.encode()) > NAME_BYTES:
            raise ValueError(f"agent: expected names of at most {NAME_BYTES} bytes, got {agent!r}")
    _warn_of_short_run(config, len(spaces))
    compile_before_a_run()
    with Interrupts() as interrupts:
        result = _run(make_env, chosen, config, spaces, interrupts, progress, resume)
    interrupts.deliver(str(result.run_dir) if result.run_dir.exists() else "")
    return result


def _chosen(algorithm: Algorithm | str) -> Algorithm:
    """Raises ValueError, TypeError: it is not an algorithm."""
    if isinstance(algorithm, str):
        return algos.make(algorithm)
    missing = [name for name in ("make_network", "act", "make_trainer") if not hasattr(algorithm, name)]
    if missing or isinstance(algorithm, type):
        what = f"the class {algorithm.__name__}" if isinstance(algorithm, type) else f"{algorithm!r}"
        lacks = f", which has no {missing[0]}" if missing else ""
        raise TypeError(f"algorithm: expected an Algorithm, such as marlcore.DQN(), or its name, got {what}{lacks}")
    return algorithm


@dataclass(frozen=True)
class AdaptedEnv:
    """Makes environments whose agents act one after another, by adapting the environments that env_fn makes."""

    env_fn: Callable[[], Any]

    def __call__(self) -> Environment:
        return adapt(self.env_fn())


def _run(
    env_fn: AdaptedEnv,
    algorithm: Algorithm,
    config: Config,
    spaces: list[tuple[str, Field, int]],
    interrupts: Interrupts,
    show: bool,
    resume: str | Path | None,
) -> Result:
    workers = [*actor_names(config), *(learner_name(agent) for agent, _, _ in spaces)]
    described = describe(env_fn.env_fn, algorithm, config)
    with ExitStack() as stack:
        if resume is None:
            run = stack.enter_context(RunDirectory.create(config.run_dir, described))
        else:
            check_resumed(resume, described)  # first, so that a refused run stays unchanged
            run = stack.enter_context(RunDirectory.resume(resume))
            _warn_of_what_begins_anew(run, [agent for agent, _, _ in spaces])
        telemetry = stack.enter_context(closing(Telemetry.create(workers)))
        control = stack.enter_context(closing(Control.create(workers, **_about(config, run.path, telemetry))))
        memory = [_create_memory(stack, algorithm, config, i, *space, run) for i, space in enumerate(spaces)]
        if resume is not None:  # last, when no check can fail any more
            run.replace_config(described)
        plans = tuple(
            AgentPlan(
                *space,
                run.checkpoint_path(space[0]),
                run.replay_path(space[0]) if config.replay.save else None,
                replay.handle,
                store.handle,
            )
            for space, (replay, store) in zip(spaces, memory, strict=True)
        )
        began = time.monotonic() - _restore_progress(run, control)
        blueprint = Blueprint(env_fn, algorithm, config, plans, control.handle, telemetry.handle, began)
        table = stack.enter_context(Progress()) if show else None
        monitor = Monitor(run, control, telemetry, table, config.total_steps, began)
        stack.callback(monitor.finish)
        server = ForkServer(PRELOAD, hurry=lambda: interrupts.signum is not None)
        stack.enter_context(closing(server))
        supervisor = None
        if config.mode == "async":
            supervisor = stack.enter_context(closing(_supervisor(blueprint, control, run, server)))
        stack.callback(control.stop)
        if supervisor and _start_all(supervisor, interrupts, config.supervision.serial_fallback):
            grace = max(GRACE_S, config.supervision.learner_timeout)
            _run_async(supervisor, actor_names(config), control, monitor, interrupts, grace)
        else:
            server.close()  # it may have failed to fork
            for notes in control.notes.values():
                notes.store(PID, os.getpid())
            _run_serial(blueprint, monitor, interrupts)
        steps = control.steps
        updates = {plan.name: control.workers[learner_name(plan.name)].load(UPDATES) for plan in plans}
        restarts = {name: notes.load(RESTARTS) for name, notes in control.notes.items()}
    _warn_of_few_samples(config, steps / len(plans), updates)
    metrics = read_metrics(run.path / "metrics.csv")
    draw(metrics, run.path / "curves.png", f"{described['env']}, {type(algorithm).__name__}, seed {config.seed}")
    return Result(run.path, steps, updates, final_returns(metrics, config.total_steps), telemetry.lost, restarts)


def _warn_of_few_samples(config: Config, steps: float, updates: Mapping[str, int]) -> None:
    """Warns if a free run, with `steps` steps of each agent, drew each transition less than once on average."""
    if config.updates_per_step is not None or steps <= config.learner.warmup:
        return
    for agent, count in updates.items():
        ratio = count * config.learner.batch_size / steps
        if ratio < 1.0:
            log.warning(
                "updates_per_step: %s trained on %.2g samples for each of its steps, since the run was free; "
                "a number, such as %g, holds the ratio",
                agent, ratio, Config.updates_per_step,
            )  # fmt: skip


def _warn_of_short_run(config: Config, agents: int) -> None:
    """Warns if a run ends before the warm-up of its replays."""
    steps = config.total_steps / agents
    if steps <= config.learner.warmup:
        log.warning(
            "learner.warmup: each agent takes %s of the %d steps, and learns only after %d: nothing will be learned",
            f"{steps:.1f}".removesuffix(".0"), config.total_steps, config.learner.warmup,
        )  # fmt: skip


def _about(config: Config, run_dir: Path, telemetry: Telemetry) -> dict[str, Any]:
    """The description of the run for `marlcore top`."""
    return {
        "run_dir": str(run_dir.resolve()),
        "pid": os.getpid(),
        "total_steps": config.total_steps,
        "batch_size": config.learner.batch_size,
        "telemetry": dataclasses.asdict(telemetry.handle),
    }


def _warn_of_what_begins_anew(run: RunDirectory, agents: list[str]) -> None:
    """Warns of parts of a resumed run that were not saved."""
    for agent in agents:
        if not run.checkpoint_path(agent).exists():
            log.warning("resume: %s has no checkpoint yet, its learner starts from scratch", agent)
    empty = [agent for agent in agents if not run.replay_path(agent).exists()]
    if empty:
        log.warning("resume: replays were not saved (replay.save): empty at first for %s", ", ".join(empty))


def _restore_progress(run: RunDirectory, control: Control) -> float:
    """Sets the workers' counters to the run's saved progress; returns the seconds that the run had taken."""
    saved = run.progress
    for name, steps in saved.get("steps", {}).items():
        if name in control.workers:
            control.workers[name].store(STEPS, steps)
    return float(saved.get("time_s", 0.0))


def _create_memory(
    stack: ExitStack,
    algorithm: Algorithm,
    config: Config,
    index: int,
    agent: str,
    observation: Field,
    actions: int,
    run: RunDirectory,
) -> tuple[ReplayBuffer, ParameterStore]:
    """An agent's replay and weights, closed with the stack; the replay is the saved one if the run has it.

    Versions of the weights continue those of the checkpoint, since a saved replay's rows refer to them.
    """
    spec, name = transition_spec(observation), f"replay.{index}"
    if run.replay_path(agent).exists():
        replay = stack.enter_context(ReplayBuffer.load(run.replay_path(agent), spec, name=name))
        if replay.limiter != config.limiter:
            raise ValueError(
                f"resume: expected a configuration that gives {agent} the limiter of its saved replay, "
                f"{replay.limiter}, got {config.limiter}"
            )
    else:
        replay = stack.enter_context(_new_replay(spec, config, name))
    network = build_network(algorithm, observation, actions, config, index)
    store = ParameterStore.create(
        network,
        mode=config.learner.publish_mode,
        extras={"epsilon": (), "updates": ()},
        begins_after=load_checkpoint(run.checkpoint_path(agent)).get("version", 0),
        name=f"weights.{index}",
    )
    return replay, stack.enter_context(store)


def _new_replay(spec: TransitionSpec, config: Config, name: str) -> ReplayBuffer:
    return ReplayBuffer.create(spec, config.replay.capacity, config.lanes, limiter=config.limiter, name=name)


def _supervisor(blueprint: Blueprint, control: Control, run: RunDirectory, server: ForkServer) -> Supervisor:
    def start(name: str, attempt: int) -> WorkerProcess:
        work = partial(run_worker, name, blueprint, attempt)
        return WorkerProcess(server, name, work, prepare=partial(setup_logging, run.log_path(name)))

    config = blueprint.config.supervision
    actors = actor_names(blueprint.config)
    timeouts = {name: config.actor_timeout if name in actors else config.learner_timeout for name in control.workers}
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
        learners = [stack.enter_context(closing(LearnerWorker(i, blueprint))) for i in range(len(blueprint.agents))]
        actors = [stack.enter_context(closing(ActorWorker(i, blueprint))) for i in range(config.actor.processes)]
        for worker in (*learners, *actors):
            worker.counters.store(READY, 1)
        rounds = 0
        while interrupts.signum is None and not all(actor.done for actor in actors):
            for actor in actors:
                if not actor.done:
                    _guarded(actor, actor.step)
            for learner in learners:
                _guarded(learner, learner.catch_up)
            rounds += 1
            if rounds % SERIAL_ROUNDS == 0:
                monitor.tick()
        if interrupts.signum is not None:
            monitor.say(STOPPING)
        for learner in learners:
            learner.finish()


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
    failed = _await_end(supervisor, monitor, interrupts, grace, failed)
    if interrupts.signum is None and failed:
        raise failed


def _await_end(
    supervisor: Supervisor, monitor: Monitor, interrupts: Interrupts, grace: float, failed: WorkerFailed | None
) -> WorkerFailed | None:
    """Gives stopping workers time for their last checkpoints; returns the failure of one, if any.

    A learner that dies meanwhile is restarted. After a failure or a signal no worker is restarted, and workers that are
    still starting are killed. A second signal, a second after the first, kills all.
    """
    began, hurried = time.monotonic(), False
    while unfinished := supervisor.unfinished:
        if not hurried and (failed or interrupts.signum is not None):
            hurried = True
            supervisor.stand_down()
            for worker in supervisor.running:
                if not worker.ready:
                    worker.end()
        if interrupts.again:
            return failed
        if time.monotonic() - began > grace:
            return failed or WorkerFailed(unfinished[0].name, "hang", f"it did not end within {grace:g} s")
        try:
            supervisor.watch(POLL_S)
        except WorkerFailed as error:
            failed = failed or error
        monitor.tick()
    return failed
