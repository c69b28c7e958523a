"""The options of an experiment, and the checks of what its environment must have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from ...checks import absolute, came, check_whole, names_error

BUFFERS = ("Buffer", "ThreadsafeBuffer")  # sorrel's classes for which a ring in shared memory stands
SHARED = "marlcore.compat.sorrel.Buffer"
NAMES_OF_1_6 = ("aggregate_epoch_stats", "_model_start_epoch_action", "_model_end_epoch_action", "_model_train_step")
ALIASES = {"mode": "publish_mode", "train_interval": "publish_interval"}  # other names in the configuration's section


@dataclass(frozen=True)
class Options:
    """How an experiment is spread over processes.

    Attributes:
        updates_per_epoch: calls of `train_step` for each agent and epoch, on average; 1 in sorrel's own loop. None:
            actor and learners run free, each at its own speed.
        ahead: epochs by which the actor may be ahead of the slowest learner. 0: they take turns as in sorrel's own
            loop, and a seed gives the same result again. Without meaning where they run free.
        copies: copies of the world that the actor advances in turn, one turn each.
        seed: of every process; None draws one from NumPy's global generator.
        publish_interval: updates between two publications of weights where learners run free; otherwise every
            epoch's updates are published.
        publish_mode: see `ParameterStore.create`.
        threads: of torch, in each process.
        niceness: added to the learners' own, so that they do not slow the actor where cores are fewer than processes.
        save_seconds: between two saves of a learner's whole model, optimizer included, from which its successor
            goes on if it is killed.
        max_restarts: of each process in ten minutes.
        timeout: seconds for one turn or update; a process that takes longer is killed and started again.
        animate, logging, output_dir: see sorrel's `run_experiment`; the first copy of the world is animated.
        replace_loop: runs sorrel's standard loop also for an environment whose class overrides `run_experiment`, which
            is refused otherwise.
    """

    updates_per_epoch: float | None = 1.0
    ahead: int = 2
    copies: int = 1
    seed: int | None = None
    publish_interval: int = 1
    publish_mode: Literal["snapshot", "double_buffer", "triple_buffer"] = "double_buffer"
    threads: int = 1
    niceness: int = 5
    save_seconds: float = 10.0
    max_restarts: int = 3
    timeout: float = 300.0
    animate: bool = False
    logging: bool = True
    output_dir: Path | str | None = None
    replace_loop: bool = False

    def __post_init__(self) -> None:
        if self.updates_per_epoch is not None and not 0 < self.updates_per_epoch < float("inf"):
            raise ValueError(f"updates_per_epoch: expected a number above 0 or None, got {self.updates_per_epoch!r}")
        for name, least in (("ahead", 0), ("copies", 1), ("publish_interval", 1), ("threads", 1), ("niceness", 0),
                            ("max_restarts", 0)):  # fmt: skip
            check_whole(name, getattr(self, name), least)
        if self.seed is not None:
            check_whole("seed", self.seed, 0)
        for name in ("timeout", "save_seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: expected seconds above 0, got {getattr(self, name)!r}")
        # Absolute, since an environment may change the working directory.
        object.__setattr__(self, "output_dir", absolute(self.output_dir or "."))


def chosen_options(env: Any, config: Any, given: Mapping[str, Any]) -> tuple[bool, Options]:
    """Whether to use processes, and the options: those given, then those of the configuration's `multiprocessing`.

    Beside the names of `Options`, that section may have `enabled` (true if it is missing), `num_learner_processes`,
    `mode` for `publish_mode`, and `train_interval` for `publish_interval`.

    Raises: ValueError, TypeError: an option is unknown or out of range; the message names it.
    """
    section = getattr(config, "multiprocessing", None)
    if not isinstance(section, Mapping | None):
        raise TypeError(f"config: multiprocessing: expected a section, got {came(section)}")
    chosen = dict(section or {})
    enabled, learners = chosen.pop("enabled", True), chosen.pop("num_learner_processes", None)
    if not isinstance(enabled, bool):
        raise TypeError(f"config: multiprocessing.enabled: expected true or false, got {came(enabled)}")
    models = len({id(getattr(agent, "model", None)) for agent in getattr(env, "agents", ())})
    if learners not in (None, models):
        raise ValueError("config: multiprocessing.num_learner_processes: "
                         f"expected null or {models}, one for each model, got {came(learners)}")  # fmt: skip
    names = {field.name for field in fields(Options)}
    if not chosen.keys() <= names | ALIASES.keys():
        raise names_error("config: multiprocessing", {"enabled", "num_learner_processes", *ALIASES, *names}, chosen)
    for alias, name in ALIASES.items():
        if {alias, name} <= chosen.keys():
            raise ValueError(f"config: multiprocessing: expected {alias} or {name}, got both")
    return enabled, Options(**{**{ALIASES.get(name, name): value for name, value in chosen.items()}, **given})


@dataclass(frozen=True)
class Schedule:
    """What sorrel's loop reads from the configuration.

    Attributes:
        epochs: all of them: sorrel's `experiment.epochs` and one.
        max_turns: of an epoch.
        epsilon_decay: of each model after each epoch, or None.
        record_period: epochs between two GIFs or saved models, or None if neither is made.
        save_weights: whether models are saved.
    """

    epochs: int
    max_turns: int
    epsilon_decay: float | None
    record_period: int | None
    save_weights: bool


def schedule_of(config: Any, animate: bool) -> Schedule:
    """Raises ValueError: the configuration lacks a value, or one is out of range."""
    model = getattr(config, "model", None)
    save_weights = bool(getattr(model, "save_weights", False))
    return Schedule(
        epochs=_required(config, "epochs", 0) + 1,
        max_turns=_required(config, "max_turns", 1),
        epsilon_decay=getattr(model, "epsilon_decay", None),
        record_period=_required(config, "record_period", 1) if animate or save_weights else None,
        save_weights=save_weights,
    )


def _required(config: Any, name: str, least: int) -> int:
    value = getattr(getattr(config, "experiment", None), name, None)
    if value is None:
        raise ValueError(f"config: expected experiment.{name}, got a configuration without it")
    check_whole(f"experiment.{name}", value, least)
    return int(value)


def check_environment(env: Any) -> None:
    """Raises TypeError: it is no environment of sorrel."""
    for name in ("take_turn", "reset", "world", "config"):
        if not hasattr(env, name):
            raise TypeError(f"env: expected an Environment of sorrel, got {type(env).__name__} without {name}")


def check_learnable(env: Any, replace_loop: bool) -> None:
    """Raises ValueError, TypeError: the environment cannot be run in processes.

    It is of another release of sorrel than 1.6, has a loop of its own, no agents, or one of their models cannot learn.
    """
    kind = type(env).__name__
    for name in NAMES_OF_1_6:
        if not hasattr(env, name):
            raise TypeError(f"env: expected an Environment of sorrel 1.6, got {kind} without {name}; sorrel's earlier "
                            "releases and its development branch are not supported")  # fmt: skip
    if not replace_loop and _has_own_loop(env):
        raise ValueError(f"env: expected sorrel's own run_experiment, but {kind} overrides it: pass replace_loop=True "
                         "to run sorrel's standard loop in its place, or call env.run_experiment")  # fmt: skip
    agents = getattr(env, "agents", None)
    if not agents:
        raise ValueError(f"env: expected agents, got {kind} with none")
    for i, agent in enumerate(agents):
        _check_model(f"agents[{i}].model", getattr(agent, "model", None))


def _has_own_loop(env: Any) -> bool:
    bases = [base for base in type(env).__mro__ if base.__name__ == "Environment"]
    mine = getattr(env, "run_experiment", None)
    return bool(bases) and getattr(mine, "__func__", mine) is not getattr(bases[-1], "run_experiment", None)


def _check_model(label: str, model: Any) -> None:
    kind = type(model).__name__
    if not callable(getattr(model, "train_step", None)):
        raise TypeError(f"{label}: expected a model with train_step, got {kind} without one")
    memory = getattr(model, "memory", None)
    if memory is None:
        raise TypeError(f"{label}: expected a model with a memory, got {kind} without one")
    if type(memory).__name__ not in BUFFERS:
        raise TypeError(f"{label}.memory: expected sorrel's Buffer or {SHARED}, got {type(memory).__name__}")
