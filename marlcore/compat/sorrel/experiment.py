"""sorrel's experiments in several processes: `run_experiment_mp`, and the parent's side of an experiment, a Session."""

import errno
import logging
import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np

from ...checks import brief
from ...errors import TimedOut, WorkerFailed, is_from_handler, suppress_failed_calls
from ...processes import (
    PRELOAD,
    RESTARTS,
    UPDATES,
    Child,
    Children,
    Control,
    Interrupts,
    RestartPolicy,
    Supervisor,
    Telemetry,
    setup_worker,
)
from ...weights import ParameterStore
from .actor import Actor
from .learner import EXTRAS, Learner
from .memory import give_back, is_rollout, rings_for, rollout_of, take_rollout
from .messages import Book, Experiment, Mailbox
from .options import Options, base_of, check_config, check_environment, check_learnable
from .packing import networks, pack, restore, tensors_of
from .role import ACTOR, LEARNER, MEMORY, MODEL, ExperimentSpec, ModelSpec, ended_epochs, seed_all
from .section import chosen_options

POLL_S = 0.05
GRACE_S = 30.0  # seconds in which learners make a last update and save their models
_OF_SORREL = ("sorrel.environment", "sorrel.models.", "sorrel.threadsafe.")

log = logging.getLogger(__name__)


def run_experiment_mp(env: Any, config: Any = None, *, logger: Any = None, **options: Any) -> Experiment:
    """Runs `env.run_experiment()` in several processes: `actors` step the world, and a learner trains each model.

    At the end, also after an error or a signal, the models of the caller's environment have the trained weights, the
    optimizer's state, epsilon and all other attributes, and their memories have the rows. The model and its memory are
    the same objects as before; the model's networks are new objects. docs/drop-ins.md says more.

    Args:
        env: an Environment of sorrel 1.6, ready for `run_experiment`. Agents that share a model have one learner.
        config: replaces `env.config`; a mapping or an OmegaConf configuration. Its section `multiprocessing` sets the
            options that the call leaves out; `enabled: false` in it runs `env.run_experiment` in this process.
        logger: sorrel's Logger, which is called in this process; by default sorrel's ConsoleLogger.
        options: updates_per_epoch, ahead, actors, copies, sync_interval, seed, output_dir and others.

    Raises:
        TypeError, ValueError: bad input, in one line; nothing was started.
        SharedMemoryFull: no room for the memories and weights.
        WorkerFailed: a process raised, died or hung more often than `max_restarts`; the error has the tracebacks.
        KeyboardInterrupt: SIGINT came. SystemExit: SIGTERM or SIGHUP came. The learners saved their models first.
    """
    began = time.monotonic()
    check_environment(env)
    if config is None:
        config = env.config
    elif isinstance(config, Mapping):
        from omegaconf import OmegaConf  # sorrel's own dependency

        config = OmegaConf.create(dict(config))
    enabled, chosen = chosen_options(env, config, options)
    if enabled:
        check_learnable(env, chosen)
    check_config(config, chosen.animate)
    if chosen.seed is None:
        chosen = replace(chosen, seed=int(np.random.randint(2**31)))
    if not chosen.logging:
        logger = None
    elif logger is None:
        from sorrel.utils.logging import ConsoleLogger  # sorrel's own default

        logger = ConsoleLogger(config.experiment.epochs)
    if not enabled:
        return _run_sequentially(env, config, chosen, logger, began)
    with Interrupts() as interrupts, ExitStack() as stack:
        session = Session(stack, env, config, chosen, interrupts, logger)
        try:
            session.work()
        finally:
            session.hand_back()
        counts = session.counts()
    interrupts.deliver()
    return session.book.experiment(began, session.began, **counts)


def _run_sequentially(env: Any, config: Any, options: Options, logger: Any, began: float) -> Experiment:
    seed_all([options.seed or 0])
    book = Book(logger, env=env)
    with configured(env, config):
        env.run_experiment(animate=options.animate, logging=True, logger=book, output_dir=options.output_dir)
    epochs, agents = len(book.scores), len(env.agents)
    return book.experiment(began, began, epochs=epochs, steps=book.turns * agents, updates=epochs * agents, restarts=0)


class Session:
    """The parent's side of an experiment; closing `stack` removes the experiment's files and memory."""

    def __init__(
        self, stack: ExitStack, env: Any, config: Any, options: Options, interrupts: Interrupts, logger: Any
    ) -> None:
        self._interrupts = interrupts
        by_model = defaultdict(list)
        for i, agent in enumerate(env.agents):
            by_model[id(agent.model)].append(i)
        self._models = [env.agents[numbers[0]].model for numbers in by_model.values()]
        learners = [LEARNER.format(i) for i in range(len(by_model))]
        self._actors = [ACTOR.format(i) for i in range(options.actors)]
        names = [*self._actors, *learners]
        options.check_processes(names)
        epochs, base = config.experiment.epochs + 1, base_of(logger, "Logger")
        self.book = Book(logger, "actors", learners)
        self.began = 0.0  # time.monotonic() when the first turn was seen
        telemetry = stack.enter_context(Telemetry.create(names))
        about: dict[str, Any] = {
            "run_dir": str(options.output_dir),
            "pid": os.getpid(),
            "total_steps": epochs * config.experiment.max_turns * len(env.agents),
            "actors": self._actors,
            "learners": dict.fromkeys(learners, ""),
            "policies": {},  # each model has its own learner, whose counters are enough
            "telemetry": asdict(telemetry.handle),
        }
        self._mail = {name: stack.enter_context(closing(Mailbox())) for name in names}
        self._control = stack.enter_context(Control.create(names, **about))
        ended = (ParameterStore.create(ended_epochs(), "snapshot", name=f"epochs.{i}") for i in range(options.actors))
        self._spec = ExperimentSpec(
            options=options,
            epochs=epochs,
            models=tuple(self._spec_of_model(stack, i, agents, options) for i, agents in enumerate(by_model.values())),
            control=self._control,
            telemetry=telemetry,
            ended=tuple(map(stack.enter_context, ended)),
            mail={name: box.path for name, box in self._mail.items()},
            # The base class records no turns.
            wants_turns=logger is not None and type(logger).record_step is not getattr(base, "record_step", None),
        )
        for_actors, *for_learners = _packed_for_each(env, config, self._models)
        self._envs = dict.fromkeys(self._actors, for_actors) | dict(zip(learners, for_learners, strict=True))

    def _spec_of_model(self, stack: ExitStack, index: int, agents: list[int], options: Options) -> ModelSpec:
        model = self._models[index]
        rings = rings_for(model.memory, options.actors * options.copies)
        # The number of epochs whose on-policy memories may wait for their learner
        epochs = options.actors * math.ceil(options.copies + options.ahead / options.actors)
        rollouts = [
            stack.enter_context(ParameterStore.create(rollout_of(model.memory), "snapshot", name=f"rollout.{i}"))
            for i in range(epochs if is_rollout(model.memory) else 0)
        ]
        for ring in rings:
            if ring is not model.memory:
                stack.callback(ring.close)
        mode = options.of("publish_mode", LEARNER.format(index))
        weights = ParameterStore.create(networks(model), mode, EXTRAS, name=f"weights.{index}")
        stack.enter_context(weights)
        # Files without a name, which the kernel removes in any case
        files = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]  # noqa: SIM115
        saves = tuple(f"/proc/{os.getpid()}/fd/{file.fileno()}" for file in files)
        return ModelSpec(tuple(agents), tuple(rings), tuple(rollouts), weights, saves)

    def work(self) -> None:
        """Runs the processes until all epochs are done or a signal comes. Raises WorkerFailed if one fails for good."""
        options = self._spec.options
        policy = RestartPolicy(max_restarts=options.max_restarts)
        with ExitStack() as stack:
            # What this process has of sorrel, except its examples, and torch's compiler, which optimizers would import
            imported = [name for name in sys.modules if name.startswith(_OF_SORREL) or name == "torch._dynamo"]
            preload, fork = (*PRELOAD, __package__, *imported), None if options.forks else False
            children = stack.enter_context(closing(Children(preload, self._interrupts, fork=fork)))
            timeouts = {name: options.of("timeout", name) for name in self._mail}
            supervisor = Supervisor(children, self._control, partial(self._start, children), timeouts, policy)
            stack.callback(self._control.stop)
            try:
                with suppress_failed_calls(errno.EINTR):  # a signal came while a process was started
                    children.server.begin()
                    for worker in supervisor.workers.values():
                        worker.start()
                    while supervisor.unfinished and self._interrupts.signum is None:
                        self._watch(supervisor)
                        self.began = self.began or (time.monotonic() if self._control.steps else 0.0)
            finally:
                self._wind_up(supervisor)
        self.book.record(all_of_it=self._interrupts.signum is None)

    def _start(self, children: Children, name: str, attempt: int) -> Child:
        self._read_mail()
        self._mail[name].drop_rest()
        folder = self._spec.options.log_dir
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        prepare = partial(setup_worker, folder and folder / f"{name}.log")
        return children.start_worker(name, partial(run_role, name, self._envs[name], self._spec, attempt), prepare)

    def _watch(self, supervisor: Supervisor) -> None:
        supervisor.watch(POLL_S)
        self._read_mail()

    def _read_mail(self) -> None:
        for name, box in self._mail.items():
            for message in box.messages():
                self.book.take("actors" if name in self._actors else name, *message)
        self.book.record()

    def _wind_up(self, supervisor: Supervisor) -> None:
        """Tells running workers to stop, and lets them save their models, for 30 s or until a second signal."""
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

    def hand_back(self) -> None:
        """Gives the caller's models their trained state, and their memories the rows; both stay the same objects.

        If a part cannot be handed back, logs a warning and hands back the others. At the end, raises the first
        exception that a signal handler raised.
        """
        failures: list[Exception] = []

        def attempt(restoring: Callable[[], object], what: str, without: str) -> None:
            try:
                restoring()
            except TimedOut:
                log.warning("%s: the published weights are torn, so the model keeps its earlier weights", what)
            except Exception as error:  # the caller's classes may raise anything
                log.warning("%s: %s (%s)", what, without, brief(error))
                failures.append(error)

        labels, epochs = [f"agents[{spec.agents[0]}].model" for spec in self._spec.models], self.counts()["epochs"]
        for label, spec, model in zip(labels, self._spec.models, self._models, strict=True):
            if spec.weights.version:  # otherwise its learner never published
                restoring = partial(restore, model, model.memory, spec.weights, spec.saves)
                attempt(restoring, label, "only its weights and epsilon are handed back")
                for tensor in tensors_of(model):  # each gets memory of its own instead of a part of a subscriber's row
                    tensor.data = tensor.data.clone()
        for label, spec, model in zip(labels, self._spec.models, self._models, strict=True):
            giving = partial(give_back, spec.rings) if spec.rings else partial(take_rollout, spec.rollout(epochs - 1))
            attempt(partial(giving, model.memory), f"{label}.memory", "its rows are lost")
        for failure in filter(is_from_handler, failures):
            raise failure

    def counts(self) -> dict[str, int]:
        """Returns the numbers of epochs, agent-steps, updates and restarts."""
        control = self._control
        return {
            "epochs": sum(ended.version for ended in self._spec.ended),
            "steps": control.steps,
            "updates": sum(counters.load(UPDATES) for counters in control.workers.values()),
            "restarts": sum(words.load(RESTARTS) for words in control.notes.values()),
        }


def run_role(name: str, env: bytes, spec: ExperimentSpec, attempt: int) -> None:
    """Runs an actor or a learner in its own process."""
    kind: type[Actor] | type[Learner] = Actor if name.startswith(ACTOR.format("")) else Learner
    if kind is Learner:
        os.nice(spec.options.niceness)
    with closing(kind(name, env, spec, attempt)) as role:
        role.work()


def _packed_for_each(env: Any, config: Any, models: list[Any]) -> list[bytes]:
    """Packs the environment, with this configuration, once for all actors and once for each learner.

    A learner's environment lacks the other learners' models.
    """
    memories = {MEMORY.format(i): model.memory for i, model in enumerate(models) if not is_rollout(model.memory)}
    named = {MODEL.format(i): model for i, model in enumerate(models)}
    with configured(env, config):
        others = [{name: other for name, other in named.items() if other is not model} for model in models]
        return [pack(env, memories), *(pack(env, memories | apart) for apart in others)]


@contextmanager
def configured(env: Any, config: Any) -> Iterator[None]:
    """Gives the environment this configuration, and no logger, during a `with` block."""
    replaced = {name: vars(env).get(name) for name in ("config", "_active_logger")}
    vars(env).update(config=config, _active_logger=None)
    try:
        yield
    finally:
        vars(env).update(replaced)
