"""Compiled forms of the algorithms: the same updates on chains, for networks of plain layers."""

from typing import Any

from ...interfaces import Trainer
from ..dqn import DQNTrainer
from .dqn import CompiledDQN
from .plain import NotPlain
from .trainer import CompiledTrainer

COMPILED: dict[type, type[CompiledTrainer]] = {DQNTrainer: CompiledDQN}


def with_engine(trainer: Any, engine: str) -> Trainer:
    """Returns the trainer, or its compiled form: with "auto" where it has one that is faster.

    Raises: ValueError: the engine is "compiled", and the message says why that cannot serve.
    """
    kind = COMPILED.get(type(trainer))
    if engine == "torch" or (kind is None and engine == "auto"):
        return trainer  # type: ignore[no-any-return]
    expected = "learner.engine: expected auto or torch"
    if kind is None:
        raise ValueError(f"{expected} for {type(trainer.hyper).__name__}, which has no compiled form, got compiled")
    compiled = kind(trainer)
    if engine == "compiled" and compiled.reason:
        raise ValueError(f"{expected} for a network with {compiled.reason}, got compiled")
    return compiled if not compiled.reason and (engine == "compiled" or compiled.is_faster) else trainer
