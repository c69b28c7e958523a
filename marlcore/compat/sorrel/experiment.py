"""sorrel's experiments in processes: `run_experiment_mp`."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...processes import Interrupts
from .messages import Book
from .options import Options, check_environment, check_learnable, chosen_options, schedule_of
from .role import seed_all
from .session import Session


@dataclass(frozen=True)
class Experiment:
    """The outcome of an experiment.

    Attributes:
        epochs: that were played to their end. steps: agent-steps.
        updates: calls of `train_step`, of all agents together.
        restarts: of processes that died.
        seconds: from the call to its end. start_s: of them, those before the first turn, in which processes start.
        scores: the world's total reward in each epoch. losses: in each epoch, the sum over all agents.
    """

    epochs: int
    steps: int
    updates: int
    restarts: int
    seconds: float
    start_s: float
    scores: list[float]
    losses: list[float]


def run_experiment_mp(env: Any, config: Any = None, *, logger: Any = None, **options: Any) -> Experiment:
    """`env.run_experiment()` in processes: one steps the world, and one for each agent's model trains it.

    The actor calls the environment's own `take_turn`: entities first, then the agents one after another. Each learner
    calls its model's own `train_step`, as often as sorrel's loop would, and its epoch hooks and `epsilon_decay`.
    Weights, buffers of the networks and epsilon reach the actor together. Each model's memory becomes a
    `marlcore.compat.sorrel.Buffer` with the rows that it held. A process that dies is started again and continues.

    At the end, also after an error or a signal, the models of the caller's environment have the trained weights, the
    optimizer's state, epsilon and all their other attributes; their memories have the rows. A model's networks are then
    other objects than before; the model and its memory are the same ones.

    The configuration's section `multiprocessing`, if there is one, sets options that the call leaves out; with
    `enabled: false` in it, the environment's own `run_experiment` runs in this process.

    Args:
        env: an Environment of sorrel 1.6, ready for `run_experiment`. Agents that share a model have one
            learner.
        config: in the place of `env.config`; a mapping or an OmegaConf configuration.
        logger: sorrel's Logger, which stays in this process; None: sorrel's ConsoleLogger.
        options: see `Options`: updates_per_epoch, ahead, copies, seed, logging, output_dir, ...

    Raises:
        TypeError, ValueError: bad input, in one line; nothing was started.
        SharedMemoryFull: no room for the memories and weights.
        WorkerFailed: a process raised, died or hung more often than `max_restarts`; it carries the tracebacks.
        KeyboardInterrupt, SystemExit: SIGINT, or SIGTERM or SIGHUP, came; the learners saved their models first.
    """
    began = time.monotonic()
    check_environment(env)
    config = env.config if config is None else _as_config(config)
    enabled, chosen = chosen_options(env, config, options)
    if enabled:
        check_learnable(env, chosen.replace_loop)
    schedule = schedule_of(config, chosen.animate)
    if chosen.seed is None:
        chosen = replace(chosen, seed=int(np.random.randint(2**31)))
    if not chosen.logging:
        logger = None
    elif logger is None:
        from sorrel.utils.logging import ConsoleLogger  # sorrel's own default

        logger = ConsoleLogger(schedule.epochs - 1)
    if not enabled:
        return _run_sequentially(env, config, chosen, logger, began)
    interrupts = Interrupts()
    with interrupts, Session(env, config, chosen, schedule, interrupts, logger) as session:
        try:
            session.work()
        finally:
            session.hand_back()
        counts = session.counts()
    interrupts.deliver()
    return _outcome(session.book, began, session.began, **counts)


def _run_sequentially(env: Any, config: Any, options: Options, logger: Any, began: float) -> Experiment:
    seed_all([options.seed or 0])
    book, before = Book(logger), env.config
    env.config = config
    try:
        env.run_experiment(animate=options.animate, logging=True, logger=book, output_dir=options.output_dir)
    finally:
        env.config = before
    epochs, agents = len(book.scores), len(env.agents)
    counts = {"epochs": epochs, "steps": book.turns * agents, "updates": epochs * agents, "restarts": 0}
    return _outcome(book, began, began, **counts)


def _outcome(book: Book, began: float, first_turn: float, **counts: int) -> Experiment:
    seconds = time.monotonic() - began
    return Experiment(**counts, seconds=seconds, start_s=first_turn - began, scores=book.scores, losses=book.losses)


def _as_config(config: Any) -> Any:
    if not isinstance(config, Mapping):
        return config
    from omegaconf import OmegaConf  # sorrel's own dependency

    return OmegaConf.create(dict(config))
