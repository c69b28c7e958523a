"""Compiled forms of trainers and of policies: they compute the same in C, for networks of plain layers only."""

from typing import Any

import torch
from torch import nn

from ...checks import brief
from ...compiled import widest
from ...interfaces import CompiledPolicy, Trainer
from ...spaces import Spaces
from ..bases.actor_critic import DelayedPolicyTrainer
from ..bases.clipped_policy import ClippedPolicyTrainer
from ..bases.hyperparameters import Hyperparameters
from ..cql import CQLTrainer
from ..dqn import DQNTrainer
from ..iqn import IQNTrainer
from ..sac import SACTrainer
from .acting import acting_policy
from .actor_critic import CompiledSAC, CompiledTD3
from .dqn import CompiledCQL, CompiledDQN
from .iqn import CompiledIQN
from .plain import NotPlain, fits
from .ppo import CompiledPPO
from .trainer import CompiledTrainer

TEXT = __package__.removesuffix("compiled")  # with its dot
COMPILED: dict[type, type[CompiledTrainer]] = {
    DQNTrainer: CompiledDQN,
    CQLTrainer: CompiledCQL,
    IQNTrainer: CompiledIQN,
    SACTrainer: CompiledSAC,
    DelayedPolicyTrainer: CompiledTD3,
    ClippedPolicyTrainer: CompiledPPO,
}


def with_engine(trainer: Any, engine: str) -> tuple[Trainer, str]:
    """Returns the trainer's compiled form and "", or the trainer itself and the reason why torch makes the updates.

    Raises ValueError, which says the reason, if the engine is "compiled" but the trainer has no compiled form.
    """
    compiled, reason = _compiled(trainer) if engine != "torch" else (None, "learner.engine is torch")
    if reason and engine == "compiled":
        raise ValueError(f"learner.engine: expected auto or torch for {reason}, got compiled")
    if compiled is not None and not reason and engine == "auto" and not fits(*compiled.networks()):
        reason = f"layers of more than {widest()} units, for which torch is as fast on this processor"
    return (trainer, reason) if reason else (compiled, "")  # type: ignore[return-value]


def compiled_policy(algorithm: Any, spaces: Spaces, engine: str) -> CompiledPolicy | None:
    """Returns the form of an algorithm's policy that acts without torch; None if torch must act or is equally fast.

    Leaves torch's generator unchanged. Raises ValueError if the engine is "compiled" but compiled forms cannot act or
    learn with this algorithm.
    """
    if not isinstance(algorithm, Hyperparameters):
        if engine == "compiled":
            raise ValueError(f"learner.engine: expected auto or torch for {brief(algorithm)}, got compiled")
        return None
    owner = type(algorithm).__name__
    with torch.random.fork_rng(devices=[]):
        try:
            model = algorithm.make_model(spaces)
            published = nn.Module()
            published.model = getattr(model, "acting", model)
            policy = acting_policy(algorithm, published, spaces)
            if engine == "compiled":
                with_engine(algorithm.make_trainer(model), engine)
        except NotPlain as error:
            if engine == "compiled":
                raise ValueError(
                    f"learner.engine: expected auto or torch for {owner} with {error}, got compiled"
                ) from None
            return None
    return policy if engine == "compiled" or fits(published) else None


def _compiled(trainer: Any) -> tuple[CompiledTrainer | None, str]:
    """Returns a trainer's compiled form, and the reason why torch must make the updates, "" if there is none."""
    kind = COMPILED.get(type(trainer))
    names = [name for name in dir(type(trainer)) if not name.startswith("__")]
    methods = filter(callable, (getattr(trainer, name) for name in names))
    if kind is None or not all(str(method.__module__).startswith(TEXT) for method in methods):  # a user's own class
        return None, f"the updates of {type(getattr(trainer, 'hyper', trainer)).__name__}"
    compiled = kind(trainer)
    return compiled, compiled.reason and f"a network with {compiled.reason}"
