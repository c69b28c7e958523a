"""The options of an experiment, and the checks of its configuration and environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

from ...checks import absolute, brief, check_whole, names_error
from ...declared import Number, Rule, Whole, check_declared, choice
from ...weights import SLOTS

# sorrel's classes that a ring in shared memory replaces
BUFFERS = ("Buffer", "ThreadsafeBuffer", "TransformerBuffer", "ThreadsafeTransformerBuffer")
ROLLOUTS = ("RolloutBuffer", "ThreadsafeRolloutBuffer")  # its on-policy memories, which hold one epoch
OF_SORREL = ("take_turn", "reset", "world", "config")
OF_1_6 = ("aggregate_epoch_stats", "_model_start_epoch_action", "_model_end_epoch_action", "_model_train_step")

Count = Annotated[int, Whole(1)]
Seconds = Annotated[float, Number(above=0, finite=False)]


def by_process(rule: Rule, label: str, value: Any) -> Any:
    """Checks a value for all processes, or a mapping of values by "actor", "learner" or the name of a process."""
    if not isinstance(value, Mapping):
        return rule(label, value)
    return {str(name): rule(f"{label}.{name}", part) for name, part in value.items()}


def _device(label: str, value: Any) -> str:
    try:
        return str(torch.device(value))
    except (RuntimeError, TypeError):
        raise ValueError(f"{label}: expected a device of torch, got {brief(value)}") from None


def _directory(label: str, value: Any) -> Path:
    path = absolute(value, label)
    if path.exists() and not path.is_dir():
        raise ValueError(f"{label}: expected a directory, got a file, {str(path)!r}")
    return path


@dataclass(frozen=True)
class Options:
    """Options that spread an experiment over processes; docs/drop-ins.md describes each."""

    updates_per_epoch: Annotated[float | None, Number(above=0)] = 1.0  # for each agent, on average; None: run free
    ahead: Annotated[int, Whole(0)] = 2  # epochs by which an actor may lead the slowest learner; 0: in turn, repeatable
    actors: Count = 1  # processes that step the world
    copies: Count = 1  # of the world, in each actor
    sync_interval: Count | None = None  # turns between an actor's checks for newer weights; None: before each epoch
    seed: Annotated[int | None, Whole(0, 2**128)] = None  # of every process; None: NumPy's global generator draws one
    publish_interval: Count = 1  # updates between publications if learners run free; otherwise each epoch publishes
    publish_mode: Annotated[Any, partial(by_process, partial(choice, (*SLOTS,)))] = "double_buffer"
    device: Annotated[Any | None, partial(by_process, _device)] = None  # of the networks; None: where they are
    threads: Count = 1  # of torch, in each process
    niceness: Annotated[int, Whole(0)] = 5  # of the learners, so that they do not slow actors on few cores
    save_seconds: Seconds = 10.0  # between saves of a whole model, from which a restarted learner continues
    max_restarts: Annotated[int, Whole(0)] = 3  # of each process in ten minutes
    timeout: Annotated[Any, partial(by_process, Number(above=0, finite=False))] = 300.0  # of one turn or update
    animate: bool = False
    logging: bool = True
    output_dir: Any = None  # an absolute path, since an environment may change the working directory
    fork: bool = True  # workers are forks of the caller's process, so they need no imports; see `forks`
    log_dir: Annotated[Path | None, _directory] = None  # for a log file of each worker; made if needed
    replace_loop: bool = False  # run sorrel's standard loop even if `run_experiment` is overridden

    @property
    def forks(self) -> bool:
        """Whether workers may be forks of the caller, since they open no GPU and start no OpenMP threads."""
        return self.fork and not self.device and self.threads == 1

    def __post_init__(self) -> None:
        check_declared(self)
        object.__setattr__(self, "output_dir", absolute(self.output_dir or ".", "output_dir"))

    def of(self, option: str, process: str) -> Any:
        """Returns an option's value for one process, such as "learner-1"."""
        value = getattr(self, option)
        if not isinstance(value, Mapping):
            return value
        return value.get(process, value.get(process.partition("-")[0], getattr(Options, option)))

    def check_processes(self, names: Sequence[str]) -> None:
        """Raises ValueError if an option names a process that does not exist."""
        for option in ("publish_mode", "device", "timeout"):
            value = getattr(self, option)
            if isinstance(value, Mapping) and not value.keys() <= {"actor", "learner", *names}:
                raise names_error(option, {"actor", "learner", *names}, value)


def setting_of(config: Any, section: str, name: str) -> Any:
    """Returns a setting in a section of a configuration, or None."""
    return getattr(getattr(config, section, None), name, None)


def check_config(config: Any, animate: bool) -> None:
    """Raises ValueError if a setting of sorrel's loop is missing or out of range."""
    least = {"epochs": 0, "max_turns": 1}
    if animate or setting_of(config, "model", "save_weights"):
        least["record_period"] = 1
    for name, low in least.items():
        value = setting_of(config, "experiment", name)
        if value is None:
            raise ValueError(f"config: expected experiment.{name}, got a configuration without it")
        check_whole(f"experiment.{name}", value, low)


def check_environment(env: Any) -> None:
    """Raises TypeError if `env` is not an environment of sorrel."""
    for name in OF_SORREL:
        if not hasattr(env, name):
            raise TypeError(f"env: expected an Environment of sorrel, got {type(env).__name__} without {name}")


def check_learnable(env: Any, options: Options) -> None:
    """Raises ValueError or TypeError if the environment cannot run in several processes."""
    kind = type(env).__name__
    for name in OF_1_6:
        if not hasattr(env, name):
            raise TypeError(f"env: expected an Environment of sorrel 1.6, got {kind} without {name}; sorrel's earlier "
                            "releases and its development branch are not supported")  # fmt: skip
    if has_own_loop(env) and not options.replace_loop:
        remedy = "pass replace_loop=True to run sorrel's standard loop in its place, or call env.run_experiment"
        raise ValueError(f"env: expected sorrel's own run_experiment, but {kind} overrides it: {remedy}")
    if not getattr(env, "agents", None):
        raise ValueError(f"env: expected agents, got {kind} with none")
    for i, agent in enumerate(env.agents):
        label, model = f"agents[{i}].model", getattr(agent, "model", None)
        for name, needed in (("train_step", "train_step"), ("memory", "a memory")):
            if getattr(model, name, None) is None:
                raise TypeError(f"{label}: expected a model with {needed}, got {type(model).__name__} without it")
        memory = type(getattr(model, "memory", None)).__name__
        if memory in ROLLOUTS and options.updates_per_epoch is None:
            raise ValueError(f"updates_per_epoch: expected a number, since {label} learns from rollouts, got None")
        if memory not in (*BUFFERS, *ROLLOUTS):
            shared = "marlcore.compat.sorrel.Buffer"
            raise TypeError(f"{label}.memory: expected sorrel's Buffer, RolloutBuffer or {shared}, got {memory}")


def has_own_loop(env: Any) -> bool:
    """Returns whether the environment overrides sorrel's `run_experiment`, as sorrel's iowa does."""
    base, loop = base_of(env, "Environment"), getattr(env, "run_experiment", None)
    return base is not None and getattr(loop, "__func__", loop) is not getattr(base, "run_experiment", None)


def saves_models(env: Any) -> bool:
    """Returns whether models are saved each record_period, by `save_weights` or, without it, as iowa's loop does."""
    chosen = setting_of(env.config, "model", "save_weights")
    by_period = has_own_loop(env) and setting_of(env.config, "experiment", "record_period")
    return bool(by_period if chosen is None else chosen)


def base_of(thing: Any, name: str) -> Any:
    """Returns the most basic of an object's classes that have this name, or None."""
    return next((kind for kind in reversed(type(thing).__mro__) if kind.__name__ == name), None)
