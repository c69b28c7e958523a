"""Anchors: opponents that stay the same, scripts and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...checks import as_field, came, check_finite
from ...references import resolve
from ...spaces import MASK, Spaces, Values
from ..blueprint import PolicyPlan, build_model
from ..config import Config
from ..learner import choose_device
from ..policies import AssignedPolicy
from ..policy import Player, Policy, PolicyModel
from .players import Chooser, PolicyPlayer
from .pool import restore_opponent

__all__ = ["ScriptedPlayer", "make_anchors"]


def make_anchors(
    policy: AssignedPolicy | PolicyPlan, config: Config, index: int, copies: int, generator: np.random.Generator
) -> list[Chooser]:
    """The anchors' players. Raises ValueError, TypeError: one cannot be imported, or is of another network."""
    anchors: list[Chooser] = []
    for reference, name in zip(config.self_play.anchors, config.self_play.names, strict=True):
        if reference.endswith(".pt"):
            device = choose_device(config.actor.device)
            model = build_model(policy, config, 0)
            _restore_anchor(Path(reference), model, policy.name)
            acting = Policy(policy.algorithm, model.to(device).acting, generator, device)
            anchors.append(PolicyPlayer(Player(acting, policy.spaces, copies, config.replay.pad)))
        else:
            anchors.append(ScriptedPlayer(name, resolve("self_play.anchors", reference), policy.spaces, copies))
    return anchors


def _restore_anchor(path: Path, model: PolicyModel, policy: str) -> None:
    """Gives the model the weights of a checkpoint of a run."""
    if not path.exists():
        raise ValueError(f"self_play.anchors: expected a checkpoint, got {str(path)!r}, which does not exist")
    expected = f"self_play.anchors: expected a checkpoint of {policy}'s network"
    restore_opponent(path, model, expected, own_name=False)  # users copy checkpoints under names of their own


class ScriptedPlayer:
    """An anchor that is a function of an observation, or a class with a method `act`, of which each copy has an object.

    It gets the observation as `Spaces.obs` says, with the mask if there is one, and returns an action of the space.

    Args:
        name: of the anchor, for errors.
        script: the function or class.
    """

    def __init__(self, name: str, script: Any, spaces: Spaces, copies: int) -> None:
        """Raises TypeError: it is neither."""
        self._name = name
        self._spaces = spaces
        if isinstance(script, type):
            if not hasattr(script, "act"):
                raise TypeError(f"{name}: expected a class with a method act(obs), got {script!r}")
            self._acts: list[Callable[[Any], Any]] = [script().act for _ in range(copies)]
        elif callable(script):
            self._acts = [script] * copies
        else:
            raise TypeError(f"{name}: expected a function of an observation or a class, got {came(script)}")

    def choose(self, obs: Values, at: NDArray[np.int64], begins: NDArray[np.bool_]) -> NDArray[Any]:
        """Raises ValueError, TypeError: an action is not of the space, or the mask forbids it."""
        return np.stack([self._action(copy, _row(obs, i)) for i, copy in enumerate(at.tolist())])

    def told(self, reward: NDArray[Any], at: NDArray[np.int64]) -> None:
        """Scripts have no memory of rewards."""

    def _action(self, copy: int, obs: Any) -> NDArray[Any]:
        spaces = self._spaces
        action = as_field(f"action of {self._name}", spaces.action_field, self._acts[copy](obs))
        if action.dtype.kind == "f":
            check_finite(f"action of {self._name}", action)
        if not spaces.action.contains(action):
            raise ValueError(f"action of {self._name}: expected one of {spaces.action}, got {action.tolist()}")
        of_row = (action - spaces.first_action).astype(action.dtype) if spaces.first_action.any() else action
        if spaces.masked and not self._allowed(of_row, obs[MASK]):
            raise ValueError(f"action of {self._name}: expected one that {MASK} allows, got {action.tolist()}")
        return of_row

    def _allowed(self, action: NDArray[Any], mask: NDArray[np.bool_]) -> bool:
        """Whether the mask of an observation allows each component of a row's action."""
        sizes = np.atleast_1d(getattr(self._spaces.action, "nvec", self._spaces.choices)).ravel()
        return bool(mask[np.cumsum(sizes) - sizes + action.ravel()].all())


def _row(obs: Values, i: int) -> Any:
    return {name: rows[i] for name, rows in obs.items()} if isinstance(obs, dict) else obs[i]
