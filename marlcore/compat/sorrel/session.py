"""An experiment from its creation to its end: shared memory, processes, and the way back into the caller's models."""

from __future__ import annotations

import errno
import logging
import os
import sys
import time
from contextlib import ExitStack, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...checks import came
from ...errors import TimedOut, WorkerFailed, is_from_handler, suppress_failed_calls
from ...processes import (
    PRELOAD,
    RESTARTS,
    STEPS,
    UPDATES,
    Child,
    Children,
    Control,
    Interrupts,
    RestartPolicy,
    Supervisor,
    Telemetry,
)
from ...weights import ParameterStore
from .actor import run_actor
from .book import Book
from .buffer import Buffer
from .clock import Clock
from .learner import EXTRAS, run_learner
from .memory import give_back, rings_for
from .nameless import Mailbox, Spare
from .options import Options, Schedule
from .packing import pack
from .role import MEMORY, MODEL, ModelPlan, Plan, networks
from .whole import restore

ACTOR = "actor-0"
LEARNER = "learner-{}"
POLL_S = 0.05
GRACE_S = 30.0  # for learners that are told to stop: one update, and a save of the model

log = logging.getLogger(__name__)


class Session:
    """The parent's side; a context manager that removes everything.

    Args:
        env: the caller's environment; its models are changed only at the end.
        seed: of all processes.
        interrupts: stops the experiment where it notes a signal.

    Attributes:
        book: what has been recorded. began: when the first turn was seen, in time.monotonic; 0.0 before.
    """

    def __init__(self, env: Any, config: Any, options: Options, schedule: Schedule, seed: int, interrupts: Interrupts,
                 logger: Any) -> None:  # fmt: skip
        self._interrupts = interrupts
        self._models, self._agents = _models_of(env.agents)
        names = [ACTOR, *(LEARNER.format(i) for i in range(len(self._models)))]
        self.book = Book(logger, names[1:])
        self.began = 0.0
        with ExitStack() as stack:
            telemetry = stack.enter_context(closing(Telemetry.create(names)))
            about: dict[str, Any] = {
                "run_dir": str(Path(options.output_dir or ".").resolve()),
                "pid": os.getpid(),
                "total_steps": schedule.epochs * schedule.max_turns * len(env.agents),
                "batch_size": int(getattr(self._models[0], "batch_size", 0)),
                "telemetry": asdict(telemetry.handle),
            }
            self._control = stack.enter_context(closing(Control.create(names, **about)))
            self._clock = stack.enter_context(closing(Clock.create(len(self._models))))
            self._stores: list[ParameterStore] = []
            models = tuple(self._plan_model(stack, i, options) for i in range(len(self._models)))
            self._envs = _packed_for_each(env, config, self._models)
            self._plan = Plan(
                options=options,
                schedule=schedule,
                seed=seed,
                models=models,
                control=self._control.handle,
                clock=self._clock.handle,
                wants_steps=records_steps(logger),
            )
            self._mail = {name: stack.enter_context(closing(Mailbox())) for name in names}
            self._stack = stack.pop_all()

    def _plan_model(self, stack: ExitStack, index: int, options: Options) -> ModelPlan:
        model = self._models[index]
        rings = rings_for(model.memory, options.copies)
        stack.callback(_close_all, [ring for ring in rings if ring is not model.memory])
        store = stack.enter_context(
            ParameterStore.create(networks(model), options.publish_mode, EXTRAS, name=f"weights.{index}")
        )
        self._stores.append(store)
        saved = stack.enter_context(closing(Spare())).paths
        return ModelPlan(self._agents[index], tuple(rings), store.handle, saved)

    def work(self) -> None:
        """Works until every epoch was played and learned from, or a signal came.

        Raises: WorkerFailed: a process failed for good.
        """
        options = self._plan.options
        policy = RestartPolicy(max_restarts=options.max_restarts)
        with ExitStack() as stack:
            preload = (*PRELOAD, __package__, *loaded_of_sorrel())
            children = stack.enter_context(closing(Children(preload, self._interrupts)))
            timeouts = dict.fromkeys(self._mail, options.timeout)
            supervisor = Supervisor(children, self._control, partial(self._start, children), timeouts, policy)
            stack.callback(self._control.stop)
            try:
                with suppress_failed_calls(errno.EINTR):  # a signal came while a process was started
                    for worker in supervisor.workers.values():
                        worker.start()
                    while supervisor.unfinished and not self._signalled():
                        self._watch(supervisor)
                        self.began = self.began or (time.monotonic() if self._control.steps else 0.0)
            finally:
                self._wind_up(supervisor)
        self.book.record(all_of_it=not self._signalled())

    def _start(self, children: Children, name: str, attempt: int) -> Child:
        for message in self._mail[name].messages():
            self.book.take(name, message)
        self._mail[name].renew()  # a killed process may have left a part of a message
        number = list(self._mail).index(name)
        run = partial(run_learner, number - 1) if number else run_actor
        work = partial(run, self._envs[number], name, self._plan, self._mail[name].path, attempt)
        return children.start_worker(name, work)

    def _watch(self, supervisor: Supervisor) -> None:
        supervisor.watch(POLL_S)
        self._read_mail()

    def _read_mail(self) -> None:
        for name, box in self._mail.items():
            for message in box.messages():
                self.book.take(name, message)
        self.book.record()

    def _wind_up(self, supervisor: Supervisor) -> None:
        """Gives workers that still run time to save; kills them at a second signal."""
        self._control.stop()
        supervisor.stand_down()
        deadline = time.monotonic() + GRACE_S
        while supervisor.running and time.monotonic() < deadline and not self._interrupts.again:
            try:
                self._watch(supervisor)
            except WorkerFailed as error:
                log.warning("%s", error)
        for worker in supervisor.running:
            log.warning("%s did not end when it was told to stop, and is killed", worker.name)
        self._read_mail()

    def _signalled(self) -> bool:
        return self._interrupts.signum is not None

    def hand_back(self) -> None:
        """Gives the caller's models their trained state, then their memories' rows; those objects stay the same.

        What cannot be handed back is a warning of one line; everything else is handed back. The first exception of a
        signal handler is raised at the end.
        """
        failures: list[Exception] = []
        plans = {f"agents[{plan.agents[0]}].model": plan for plan in self._plan.models}
        for (label, plan), model, store in zip(plans.items(), self._models, self._stores, strict=True):
            if store.version:  # otherwise its learner never published
                try:
                    restore(model, model.memory, store, plan.saved)
                except TimedOut:
                    log.warning("%s: the published weights are torn, and stay as they were", label)
                except Exception as error:  # a class's own unpickling may raise anything
                    log.warning("%s: only its weights and epsilon are handed back (%s)", label, came(error))
                    failures.append(error)
                _own(networks(model))
        for (label, plan), model in zip(plans.items(), self._models, strict=True):
            try:
                give_back(plan.rings, model.memory)
            except Exception as error:  # a memory is of the caller's own class
                log.warning("%s.memory: its rows are lost (%s)", label, came(error))
                failures.append(error)
        for failure in filter(is_from_handler, failures):
            raise failure

    def counts(self) -> dict[str, Any]:
        """Epochs, agent-steps, and by learner its updates and restarts."""
        workers, notes = self._control.workers, self._control.notes
        return {
            "epochs": self._clock.ended,
            "steps": workers[ACTOR].load(STEPS),
            "updates": sum(counters.load(UPDATES) for counters in workers.values()),
            "restarts": sum(one.load(RESTARTS) for one in notes.values()),
        }

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()


def _models_of(agents: list[Any]) -> tuple[list[Any], list[tuple[int, ...]]]:
    """The different models, and the numbers of each one's agents."""
    found: dict[int, list[int]] = {}
    for i, agent in enumerate(agents):
        found.setdefault(id(agent.model), []).append(i)
    numbers = [tuple(mine) for mine in found.values()]
    return [agents[mine[0]].model for mine in numbers], numbers


def _packed_for_each(env: Any, config: Any, models: list[Any]) -> list[bytes]:
    """The environment for the actor, and for each learner without the other models; with this configuration."""
    memories = [(model.memory, MEMORY.format(i)) for i, model in enumerate(models)]
    apart = [(model, MODEL.format(i)) for i, model in enumerate(models)]
    before = {name: vars(env).get(name) for name in ("config", "_active_logger")}
    try:
        vars(env).update(config=config, _active_logger=None)
        mine = [pack(env, [*apart[:i], memories[i], *apart[i + 1 :]]) for i in range(len(models))]
        return [pack(env, memories), *mine]
    finally:
        vars(env).update(before)


def loaded_of_sorrel() -> list[str]:
    """sorrel's own modules that this process has imported, without its examples, for the workers' fork server."""
    prefixes = ("sorrel.environment", "sorrel.models.", "sorrel.threadsafe.")
    return [name for name in sys.modules if name.startswith(prefixes)]


def _close_all(rings: list[Buffer]) -> None:
    for ring in rings:
        ring.close()


def _own(module: torch.nn.Module) -> None:
    """Gives each tensor memory of its own again, in place of a part of the row that a subscriber made."""
    for tensor in [*module.parameters(), *module.buffers()]:
        tensor.data = tensor.data.clone()


def records_steps(logger: Any) -> bool:
    """Whether a logger does more than sorrel's base class with each turn, which is nothing."""
    kind: Any = type(logger)
    bases = [base for base in kind.__mro__ if base.__name__ == "Logger"]
    return logger is not None and not (bases and kind.record_step is bases[0].record_step)
