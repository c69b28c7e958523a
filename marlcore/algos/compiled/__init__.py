"""Compiled forms of the algorithms: the same updates on chains, for networks of plain layers."""

from typing import Any

from ...interfaces import Trainer
from ..bases.actor_critic import DelayedPolicyTrainer
from ..cql import CQLTrainer
from ..dqn import DQNTrainer
from ..iqn import IQNTrainer
from ..sac import SACTrainer
from .actor_critic import CompiledSAC, CompiledTD3
from .dqn import CompiledCQL, CompiledDQN
from .iqn import CompiledIQN
from .plain import NotPlain
from .trainer import CompiledTrainer

TEXT = __package__.removesuffix("compiled")  # with its dot
COMPILED: dict[type, type[CompiledTrainer]] = {
    DQNTrainer: CompiledDQN,
    CQLTrainer: CompiledCQL,
    IQNTrainer: CompiledIQN,
    SACTrainer: CompiledSAC,
    DelayedPolicyTrainer: CompiledTD3,
}


def with_engine(trainer: Any, engine: str) -> Trainer:
    """Returns the trainer itself or its compiled form, which "auto" takes where there is one that is faster.

    Raises: ValueError: the engine is "compiled", and the message says why that cannot serve.
    """
    update = getattr(trainer.update, "__func__", None)
    own = update is not None and update.__module__.startswith(TEXT)  # and nobody replaced it
    kind = COMPILED.get(type(trainer)) if own else None
    if engine == "torch" or (kind is None and engine == "auto"):
        return trainer  # type: ignore[no-any-return]
    expected = "learner.engine: expected auto or torch"
    if kind is None:
        raise ValueError(f"{expected} for {type(trainer.hyper).__name__}, which has no compiled form, got compiled")
    compiled = kind(trainer)
    if engine == "compiled" and compiled.reason:
        raise ValueError(f"{expected} for a network with {compiled.reason}, got compiled")
    return compiled if not compiled.reason and (engine == "compiled" or compiled.is_faster) else trainer
