"""The options of an experiment, and the checks of what its environment must have."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ...checks import check_whole

__all__ = ["Options", "Schedule", "check_environment", "schedule_of"]

BUFFERS = ("Buffer", "ThreadsafeBuffer")  # sorrel's classes for which a ring in shared memory stands
SHARED = "marlcore.compat.sorrel.Buffer"


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
        object.__setattr__(self, "output_dir", Path(self.output_dir or ".").absolute())


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
    """Raises ValueError, TypeError: it is no environment of sorrel, has no agents, or one of their models cannot learn.

    The message is one line that names it.
    """
    for name in ("take_turn", "reset", "world", "config"):
        if not hasattr(env, name):
            raise TypeError(f"env: expected an Environment of sorrel, got {type(env).__name__} without {name}")
    agents = getattr(env, "agents", None)
    if not agents:
        raise ValueError(f"env: expected agents, got {type(env).__name__} with none")
    for i, agent in enumerate(agents):
        _check_model(f"agents[{i}].model", getattr(agent, "model", None))


def _check_model(label: str, model: Any) -> None:
    kind = type(model).__name__
    if not callable(getattr(model, "train_step", None)):
        raise TypeError(f"{label}: expected a model with train_step, got {kind} without one")
    memory = getattr(model, "memory", None)
    if memory is None:
        raise TypeError(f"{label}: expected a model with a memory, got {kind} without one")
    if type(memory).__name__ not in BUFFERS:
        raise TypeError(f"{label}.memory: expected sorrel's Buffer or {SHARED}, got {type(memory).__name__}")
