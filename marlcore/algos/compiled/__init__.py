"""Compiled forms of the algorithms: the same updates on chains, for networks of plain layers."""

from typing import Any

from ...compiled import widest
from ...interfaces import Trainer
from ..bases.actor_critic import DelayedPolicyTrainer
from ..bases.clipped_policy import ClippedPolicyTrainer
from ..dqn import DQNTrainer
from ..sac import SACTrainer
from .actor_critic import CompiledSAC, CompiledTD3
from .dqn import CompiledDQN
from .plain import NotPlain
from .ppo import CompiledPPO
from .trainer import CompiledTrainer

TEXT = __package__.removesuffix("compiled")  # with its dot
COMPILED: dict[type, type[CompiledTrainer]] = {
    DQNTrainer: CompiledDQN,
    SACTrainer: CompiledSAC,
    DelayedPolicyTrainer: CompiledTD3,
    ClippedPolicyTrainer: CompiledPPO,
}


def with_engine(trainer: Any, engine: str) -> tuple[Trainer, str]:
    """Returns the trainer's compiled form and "", or the trainer itself and why torch makes its updates.

    Raises: ValueError: the engine is "compiled", which cannot serve; the message says why.
    """
    compiled, reason = _compiled(trainer) if engine != "torch" else (None, "learner.engine is torch")
    if reason and engine == "compiled":
        raise ValueError(f"learner.engine: expected auto or torch for {reason}, got compiled")
    if compiled is not None and engine == "auto" and not compiled.is_faster:
        reason = f"layers of more than {widest()} units, for which torch is as fast on this processor"
    return (trainer, reason) if reason else (compiled, "")  # type: ignore[return-value]


def _compiled(trainer: Any) -> tuple[CompiledTrainer | None, str]:
    """Returns a trainer's compiled form, or the reason why it has none."""
    update = getattr(trainer.update, "__func__", None)
    kind = COMPILED.get(type(trainer))
    if kind is None or update is None or not update.__module__.startswith(TEXT):
        return None, f"the updates of {type(trainer).__name__}"
    compiled = kind(trainer)
    return compiled, compiled.reason and f"a network with {compiled.reason}"
