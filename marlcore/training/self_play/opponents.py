"""Opponents as players: anchors, which stay the same, and frozen policies, which are loaded when they are drawn.

Opponents have numbers, which name them to all processes: 0 is the latest policy, -1, -2, ... are the anchors in their
order, and 1, 2, ... the frozen copies in the order of their admission.
"""

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...references import resolve
from ...weights import ParameterStore
from ..config import AssignedPolicy, Config
from ..loops import Player, Policy, PolicyPlayer, ScriptedPlayer, build_model, choose_device, exploration_of
from .pool import held_by, restore_opponent


@dataclass
class Opponents:
    """The players of opponents by number; a frozen policy has a model of its own, kept while it plays or is held."""

    policy: AssignedPolicy  # the one that learns
    config: Config
    pool: ParameterStore  # of frozen policies
    copies: int
    generator: np.random.Generator  # for the algorithm's draws

    def __post_init__(self) -> None:
        """Raises ValueError, TypeError: see `make_anchors`."""
        self._device = choose_device(self.config.actor.device)
        self._model = build_model(self.policy, self.config, 0).acting.to(self._device)
        self._subscriber = self.pool.subscriber(self._model)
        anchors = make_anchors(self.policy, self.config, self.copies, self.generator)
        self._players: dict[int, Player] = {-1 - i: anchor for i, anchor in enumerate(anchors)}

    @property
    def held(self) -> range:
        """The numbers of the pool's members, oldest first."""
        return held_by(self.pool)

    def load(self, number: int) -> bool:
        """Makes an opponent's player unless it is here; returns whether it can play: not if the pool replaced it."""
        if number not in self._players:
            if not self._subscriber.pull_version(number):
                return False
            explore = exploration_of(self._subscriber.extras) if self.config.self_play.explore else None
            model = copy.deepcopy(self._model)
            frozen = Policy(self.policy.algorithm, model, self.generator, self._device, explore)
            self._players[number] = PolicyPlayer(frozen, self.policy.spaces, self.copies, self.config.replay.pad)
        return True

    def __getitem__(self, number: int) -> Player:
        return self._players[number]

    def keep(self, numbers: Collection[int]) -> None:
        """Releases all other frozen policies."""
        self._players = {number: self._players[number] for number in self._players if number < 0 or number in numbers}


def make_anchors(policy: AssignedPolicy, config: Config, copies: int, generator: np.random.Generator) -> list[Player]:
    """The anchors' players. Raises ValueError, TypeError: one cannot be imported, or is of another network."""
    anchors: list[Player] = []
    for reference, name in zip(config.self_play.anchors, config.self_play.names, strict=True):
        if reference.endswith(".pt"):
            if not Path(reference).exists():
                raise ValueError(f"self_play.anchors: expected a checkpoint, got {reference!r}, which does not exist")
            device, model = choose_device(config.actor.device), build_model(policy, config, 0)
            expected = f"self_play.anchors: expected a checkpoint of {policy.name}'s network"
            # Users copy checkpoints under names of their own.
            restore_opponent(Path(reference), model, expected, own_name=False)
            acting = Policy(policy.algorithm, model.to(device).acting, generator, device)
            anchors.append(PolicyPlayer(acting, policy.spaces, copies, config.replay.pad))
        else:
            anchors.append(ScriptedPlayer(name, resolve("self_play.anchors", reference), policy.spaces, copies))
    return anchors


def name_of(number: int, anchors: Sequence[str]) -> str:
    """An opponent's name: "pool:latest", "pool:3", or its anchor's."""
    if number < 0:
        return anchors[-number - 1]
    return f"pool:{number}" if number else "pool:latest"
