"""Runs trainings: `train` blocks, `start` returns a `Run`, `train_offline` learns from recorded data.

This file imports little at its top: each function first starts the fork server, whose imports take longest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..closing import ClosedAfterError
from ..lazy import require
from ..processes import EARLY, Children, Interrupts

if TYPE_CHECKING:
    from pathlib import Path

    from ..config import AssignedPolicy, Config
    from ..record import Callback, InitFrom, Table
    from ..replay import ReplayBuffer
    from ..spaces import Spaces
    from .launch import Launch
    from .run import Result, Run
    from .spec import Algorithms

require("train")  # otherwise a missing package would show only at a call


@dataclass(frozen=True)
class Shared:
    """What several runs of one program share: the fork server (in `children`) and a table of progress."""

    children: Children
    table: Table | None = None
    plots: bool = True  # whether the run draws its own curves at its end


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
    _shared: Shared | None = None,
) -> Result:
    """Trains the policies of an environment's agents, each with its own replay, weights and learner.

    Args:
        env_fn: a function that makes one environment copy: an `Environment`, or a PettingZoo or Gymnasium environment.
            Or it makes several copies at once (a Gymnasium vector environment, EnvPool), whose number then replaces
            config.actor.envs. In async mode other processes call it, so cloudpickle must be able to pickle it: any
            function or class, a lambda, a partial. Or a name for `envs.make`: "gymnasium:CartPole-v1".
        algorithm: any `Algorithm`; the name of one, which then has its default hyperparameters: "dqn", "iqn", "r2d2",
            "module:Class"; or a dict of these by policy, see config.policies.
        config: the settings.
        progress: show a table of the run's progress, and notices of long waits, on standard error.
        resume: the directory of a run to continue from its last checkpoints; config.run_dir must be None or name the
            same directory. Or an fsspec address: `train` first copies the run to a new directory in runs/, and copies
            changed files back. The run continues with the settings of `config`, which may differ from its earlier ones;
            only settings and hyperparameters on which its checkpoints and saved replays depend must be the same.
            `total_steps` counts from the run's beginning, and must exceed the steps that the run has taken. No code of
            the directory is executed (unlike `marlcore train --resume`, which imports classes named in config.json).
        callback: a function that is called with each `Metric` (time_s, step, agent, name, value), or an object with any
            of the methods `on_metric(metric)`, `on_evaluation(evaluation)` and `on_checkpoint(checkpoint)`, which take
            a `Metric`, an `EvaluationEvent` and a `CheckpointEvent`. A thread of this process calls it. If it returns
            `Stop`, or raises `StopRun`, the run ends in order, with a last evaluation; any other exception ends it
            without an evaluation, and `train` raises it. A slow callback does not delay training: metrics that it
            cannot take in time are dropped, and counted in `Result.lost`; evaluations and checkpoints are never
            dropped.
        init_from: weights from which the policies start, with new optimizers, counters and schedules: a run's
            directory, whose last checkpoint of the same policy, or of the run's only policy, is used; a checkpoint of
            a run; a `state_dict` of the whole network; or a dict of these by policy. No code in them is executed. With
            `resume`, the run keeps its counts and continues with these weights and with a checkpoint's optimizers.
        init_strict: whether to refuse weights whose names or shapes do not fit the network; False leaves them out, and
            logs their names.

    A run that fails before its learners have begun, or before its first step, leaves no directory.

    Raises:
        ValueError, TypeError: bad input, in one line; nothing was started.
        WorkerFailed: a worker raised, died or hung more often than `config.supervision` allows; the error carries the
            tracebacks, and says whether the worker's environment raised.
        SharedMemoryFull: /dev/shm has no room for the replays.
        KeyboardInterrupt: SIGINT arrived; SystemExit: SIGTERM or SIGHUP arrived. The run first wrote everything.
            The message of KeyboardInterrupt says how to continue the run; its attribute `folder` is the directory.
        Whatever the callback raises, except `StopRun`.
    """
    shared = _shared or Shared(children_of(config))
    with shared.children:
        from .launch import Launch

        steering = progress, resume, callback, init_from, init_strict
        launch = Launch.checked(env_fn, algorithm, config, *steering, plots=shared.plots)
        return _finished(launch, shared)


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

    As with `train`, the run has a directory, checkpoints, metrics and evaluations, for `load_policy` and `marlcore
    eval`. An update counts as a step for schedules, metrics, `evaluation.interval` and `Result.steps`.

    Args:
        replay: the transitions, from `ReplayBuffer.from_episodes` or any other replay without a limiter; writers may
            add to it meanwhile. For an environment with several policies, a dict of one replay for each.
        algorithm: an off-policy algorithm, or its name: "bc", "cql", "td3bc", "dqn", "iqn", "r2d2", "td3", "sac". The
            replay's spec must equal the algorithm's `transition(spaces)`; additional extras are ignored.
        updates: number of updates of each policy; with `resume`, earlier updates count.
        env_fn: as for `train`; the environment gives the spaces, and evaluations play in it. Or the spaces alone, if
            there is no environment.
        config: the settings; by default `Config` with learner.n_step=1. Settings of acting, of the warm-up and of
            the replay's size do not apply; a notice names those that were set.
        progress, resume, callback, init_from, init_strict: as for `train`.

    `Result.returns` are NaN, since no actor plays.

    Raises: as `train`; also ValueError if the replay's spec differs, and NotEnoughData if no batch can be drawn.
    """
    with children_of(config) as children:
        from .launch import Launch

        steering = progress, resume, callback, init_from, init_strict
        launch = Launch.checked(env_fn, algorithm, config, *steering, data=(replay, updates))
        return _finished(launch, Shared(children))


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
    _shared: Shared | None = None,
) -> Run:
    """Starts a run in the background, watched by a thread of this process; the arguments are `train`'s.

    No signal stops it: the program decides, by `stop` or by leaving the run's `with` block. The interpreter's exit
    stops it too.

    Raises: as `train`, for everything that fails before the run's processes start; `Run.wait` raises the rest.
    """
    shared = _shared or Shared(children_of(config))
    with ClosedAfterError(shared.children):
        from .launch import Launch
        from .run import Run

        steering = progress, resume, callback, init_from, init_strict
        launch = Launch.checked(env_fn, algorithm, config, *steering, plots=shared.plots)
        return Run(launch, shared.children, shared.table)


def policies_of(
    env_fn: Callable[[], Any] | str, algorithm: Algorithms, config: Config, progress: bool = False, **steering: Any
) -> tuple[AssignedPolicy, ...]:
    """Checks the arguments, and returns the policies that `train` would train with them. Raises as `train` does."""
    from .launch import Launch

    return Launch.checked(env_fn, algorithm, config, progress, **steering).spec.policies


def children_of(config: Config | None) -> Children:
    """Makes the owner of a run's processes; in async mode, starts the fork server, which begins its imports at once."""
    children = Children(interrupts=Interrupts(), early=EARLY)
    if getattr(config, "mode", "async") == "async":
        with suppress(OSError):  # without processes, the run reports this or works serially
            children.server.begin()
    return children


def _finished(launch: Launch, shared: Shared) -> Result:
    """Does a run in this thread. Raises KeyboardInterrupt or SystemExit after a signal, or the callback's error."""
    from .run import work

    with shared.children.interrupts as interrupts:
        result = work(launch, shared.children, shared.table)
    interrupts.deliver(str(result.run_dir) if result.run_dir.exists() else "")
    return result
