"""sorrel's experiments in processes: `run_experiment_mp`."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...processes import Interrupts
from .messages import Book
from .options import Options, check_config, check_environment, check_learnable, chosen_options
from .role import seed_all
from .session import Session, configured


@dataclass(frozen=True)
class Experiment:
    """The counts, times, scores and losses of an experiment."""

    epochs: int  # played to their end
    steps: int  # of all agents together
    updates: int  # calls of `train_step`, of all agents together
    restarts: int  # of processes that died
    seconds: float  # from the call to its end
    start_s: float  # the part of `seconds` before the first turn, in which processes start
    scores: list[float]  # the world's total reward in each epoch
    losses: list[float]  # in each epoch, the sum over all agents


def run_experiment_mp(env: Any, config: Any = None, *, logger: Any = None, **options: Any) -> Experiment:
    """Runs `env.run_experiment()` in several processes: `actors` step the world, and a learner trains each model.

    At the end, also after an error or a signal, the models of the caller's environment have the trained weights, the
    optimizer's state, epsilon and all their other attributes, and their memories have the rows. The model and its
    memory are the same objects as before; the model's networks are new objects. docs/drop-ins.md says more.

    Args:
        env: an Environment of sorrel 1.6, ready for `run_experiment`. Agents that share a model have one learner.
        config: replaces `env.config`; a mapping or an OmegaConf configuration. Its section `multiprocessing` sets the
            options that the call leaves out; `enabled: false` there runs `env.run_experiment` in this process.
        logger: sorrel's Logger, which stays in this process; None: sorrel's ConsoleLogger.
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
    interrupts = Interrupts()
    with interrupts, ExitStack() as stack:
        session = Session(stack, env, config, chosen, interrupts, logger)
        try:
            session.work()
        finally:
            session.hand_back()
        counts = session.counts()
    interrupts.deliver()
    return _outcome(session.book, began, session.began, **counts)


def _run_sequentially(env: Any, config: Any, options: Options, logger: Any, began: float) -> Experiment:
    seed_all([options.seed or 0])
    book = Book(logger, env=env)
    with configured(env, config):
        env.run_experiment(animate=options.animate, logging=True, logger=book, output_dir=options.output_dir)
    epochs, agents = len(book.scores), len(env.agents)
    counts = {"epochs": epochs, "steps": book.turns * agents, "updates": epochs * agents, "restarts": 0}
    return _outcome(book, began, began, **counts)


def _outcome(book: Book, began: float, first_turn: float, **counts: int) -> Experiment:
    seconds = time.monotonic() - began
    return Experiment(**counts, seconds=seconds, start_s=first_turn - began, scores=book.scores, losses=book.losses)
