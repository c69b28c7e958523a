"""A player that acts by a mixture of policies, as PSRO returns one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..fixed import fixed
from ..loops import Player, PlayersByShare
from ..spaces import Spaces
from .loaded_policy import LoadedPolicy


@fixed()
class MixedPlayer:
    """Draws a policy from the mixture when an episode begins, and acts by it until the episode ends.

    `evaluate(policies=...)` takes such a player, and draws a policy for each episode in each copy of the environment.
    """

    def __init__(
        self, policies: Sequence[LoadedPolicy], mixture: NDArray[np.float64], seed: Sequence[int] | None = None
    ) -> None:
        self._policies, self._mixture, self._seed = list(policies), mixture, seed
        self._generator = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> None:
        """Begins an episode: draws the policy that plays it."""
        self._present = self._policies[int(self._generator.choice(len(self._policies), p=self._mixture))]
        self._present.reset()

    def act(self, obs: Any, mask: Any = None, reward: float = 0.0) -> int | NDArray[Any]:
        """Returns the drawn policy's action; see `LoadedPolicy.act`."""
        return self._present.act(obs, mask, reward)

    @property
    def spaces(self) -> Spaces:
        return self._policies[0].spaces

    def player(self, copies: int, seed: int = 0, explore: bool = False) -> Player:
        """See `LoadedPolicy.player`; this player's own seed changes the draws, too."""
        generator = np.random.default_rng(None if self._seed is None else [*self._seed, seed])
        players = [policy.player(copies, seed, explore) for policy in self._policies]
        return PlayersByShare(players, self._mixture, copies, generator)

    def __deepcopy__(self, memo: dict[int, Any]) -> MixedPlayer:
        seed = [int(self._generator.spawn(1)[0].integers(1 << 63))]
        return MixedPlayer(list(map(copy.copy, self._policies)), self._mixture, seed)  # the copies share their weights
