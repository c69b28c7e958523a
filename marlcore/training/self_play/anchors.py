"""Anchors: opponents that stay the same, scripts and checkpoints."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ...references import resolve
from ..config import AssignedPolicy, Config
from ..loops import Player, Policy, PolicyModel, PolicyPlayer, ScriptedPlayer, choose_device
from ..workers import PolicyPlan, build_model
from .pool import restore_opponent


def make_anchors(
    policy: AssignedPolicy | PolicyPlan, config: Config, copies: int, generator: np.random.Generator
) -> list[Player]:
    """The anchors' players. Raises ValueError, TypeError: one cannot be imported, or is of another network."""
    anchors: list[Player] = []
    for reference, name in zip(config.self_play.anchors, config.self_play.names, strict=True):
        if reference.endswith(".pt"):
            device = choose_device(config.actor.device)
            model = build_model(policy, config, 0)
            _restore_anchor(Path(reference), model, policy.name)
            acting = Policy(policy.algorithm, model.to(device).acting, generator, device)
            anchors.append(PolicyPlayer(acting, policy.spaces, copies, config.replay.pad))
        else:
            anchors.append(ScriptedPlayer(name, resolve("self_play.anchors", reference), policy.spaces, copies))
    return anchors


def _restore_anchor(path: Path, model: PolicyModel, policy: str) -> None:
    """Gives the model the weights of a checkpoint of a run."""
    if not path.exists():
        raise ValueError(f"self_play.anchors: expected a checkpoint, got {str(path)!r}, which does not exist")
    expected = f"self_play.anchors: expected a checkpoint of {policy}'s network"
    restore_opponent(path, model, expected, own_name=False)  # users copy checkpoints under names of their own
