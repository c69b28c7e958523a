"""Opponents in an actor's copies of the environment: frozen policies, which are loaded when they are drawn."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from ...interfaces import Algorithm
from ...spaces import Spaces
from ...weights import Subscriber
from ..loops import ActingModel, Player, Policy, PolicyPlayer, exploration_of


class FrozenPlayers:
    """Players of the pool's opponents, each with a model of its own, kept while it plays or the pool holds it.

    Args:
        algorithm, spaces: of the policy.
        subscriber: of the pool; it fills `model`, of which each player has a copy.
        device: of the model.
        copies: of the environment.
        pad: the padding of stacks.
        generator: for the algorithm's draws.
        explore: whether they explore, with the numbers of their admission.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        spaces: Spaces,
        subscriber: Subscriber,
        model: ActingModel,
        device: torch.device,
        copies: int,
        pad: Any,
        generator: np.random.Generator,
        explore: bool,
    ) -> None:
        self._algorithm = algorithm
        self._spaces = spaces
        self._subscriber = subscriber
        self._model = model
        self._device = device
        self._copies = copies
        self._pad = pad
        self._generator = generator
        self._explore = explore
        self._players: dict[int, PolicyPlayer] = {}

    def has(self, number: int) -> bool:
        """Whether this opponent can play: it is here, or the pool still holds it."""
        if number not in self._players:
            if not self._subscriber.pull_version(number):
                return False
            explore = exploration_of(self._subscriber.extras) if self._explore else None
            model = copy.deepcopy(self._model)
            policy = Policy(self._algorithm, model, self._generator, self._device, explore)
            self._players[number] = PolicyPlayer(policy, self._spaces, self._copies, self._pad)
        return True

    def __getitem__(self, number: int) -> Player:
        return self._players[number]

    def keep(self, numbers: Collection[int]) -> None:
        """Releases all others."""
        self._players = {number: player for number, player in self._players.items() if number in numbers}
