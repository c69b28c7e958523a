"""Which work a worker does, by its name."""

import logging

import torch

from ..config import EVALUATOR, actor_names
from .actor_worker import run_actor
from .blueprint import Blueprint
from .evaluator_worker import run_evaluator
from .learner_worker import run_learner

log = logging.getLogger(__name__)


def run_worker(name: str, blueprint: Blueprint, attempt: int) -> None:
    """Runs a worker in its own process, the n-th attempt, until its work is done or the parent stops it."""
    config = blueprint.config
    torch.set_num_threads(config.learner.threads)
    actors = actor_names(config)
    if name in actors:
        run_actor(actors.index(name), blueprint, attempt)
    elif name == EVALUATOR:
        run_evaluator(blueprint, attempt)
    else:
        run_learner(name, blueprint, attempt)
    log.info("%s is done", name)
