"""Players of an agent in several copies of the environment: a script, or several players, one chosen for each copy.

The player that acts by a network is in acting_policy.py.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import brief, check_finite
from ..interfaces import Action
from ..observations import ALONE, Values, rows_at
from ..spaces import JOINT, MASK, Spaces
from ..spec import as_field
from .acting_policy import ActingPolicy

if TYPE_CHECKING:
    import torch

LATEST = 0  # the number of the policy that learns; its opponents have other numbers


class Player(Protocol):
    """Chooses an agent's actions in several copies of the environment."""

    def choose(self, obs: Values, index: Any, begins: NDArray[np.bool_]) -> Action:
        """Chooses actions [k, ...], as rows store them, in the copies `index`; `begins` [k] marks new episodes."""

    def reward(self, reward: NDArray[Any], index: Any) -> None:
        """Takes the rewards [k] of the last actions in the copies `index`."""


class ScriptedPlayer:
    """Acts by a script: a function of an observation, or a class or an object with a method `act(obs)`.

    Each copy of the environment has its own instance of the class or copy of the object, whose method `reset()`, if
    any, is called when an episode begins. A script gets the observation as `Spaces.obs` describes it, without the part
    JOINT if `hides_joint` is True. Raises TypeError for a script of another kind.
    """

    def __init__(self, name: str, script: Any, spaces: Spaces, copies: int, hides_joint: bool = False) -> None:
        self._label = f"action of {name}"
        self._spaces, self._hides_joint = spaces, hides_joint
        self._resets: list[Callable[[], Any]] = []
        if not hasattr(script, "act"):
            if isinstance(script, type):
                raise TypeError(f"{name}: expected a class with a method act(obs), got {brief(script)}")
            if not callable(script):
                expected = "a function of an observation, or a class or object with a method act(obs)"
                raise TypeError(f"{name}: expected {expected}, got {brief(script)}")
            self._acts: list[Callable[[Any], Any]] = [script] * copies
            return
        try:
            players = [script() if isinstance(script, type) else copy.deepcopy(script) for _ in range(copies)]
        except Exception as error:  # an object may raise anything
            if isinstance(script, type):
                raise
            expected = "an object that can be copied for each copy of the environment, or its class"
            raise TypeError(f"{name}: expected {expected}, got {brief(script)} ({brief(error)})") from None
        self._acts = [player.act for player in players]
        if callable(getattr(script, "reset", None)):
            self._resets = [player.reset for player in players]

    def choose(self, obs: Values, index: Any, begins: NDArray[np.bool_]) -> Action:
        """See `Player`. Raises ValueError or TypeError if an action is outside the space or the mask forbids it."""
        copies = np.arange(len(self._acts))[index].tolist()
        if self._resets:
            for i in np.flatnonzero(begins).tolist():
                self._resets[copies[i]]()
        return Action(np.stack([self._action(copy, rows_at(obs, i)) for i, copy in enumerate(copies)]))

    def reward(self, reward: NDArray[Any], index: Any) -> None:
        """Ignores the rewards, which scripts do not use."""

    def _action(self, copy: int, obs: Any) -> NDArray[Any]:
        spaces, label, seen = self._spaces, self._label, obs
        if self._hides_joint:  # drop the part that only critics see
            visible = {name.removeprefix(f"{ALONE}__"): value for name, value in obs.items() if name != JOINT}
            seen = visible[ALONE] if visible.keys() == {ALONE} else visible
        action = as_field(label, spaces.action_field, self._acts[copy](seen))
        if action.dtype.kind == "f":
            check_finite(label, action)
        if not spaces.action.contains(action):
            raise ValueError(f"{label}: expected an action of {spaces.action}, got {action.tolist()}")
        of_row = (action - spaces.action_start).astype(action.dtype) if spaces.action_start.any() else action
        if spaces.masked and not obs[MASK][spaces.mask_starts + of_row.ravel()].all():
            raise ValueError(f"{label}: expected an action that {MASK} allows, got {action.tolist()}")
        return of_row


@dataclass
class ScriptedAtFirst:
    """Acts by a script in episodes that begin before the policy has `learned`, and by the policy in later ones.

    A run refuses a script if rows have the algorithm's extras, since scripts compute no extras.
    """

    policy: ActingPolicy
    script: ScriptedPlayer
    learned: Callable[[], bool]

    def __post_init__(self) -> None:
        self._scripted = scripted = np.zeros(self.policy.copies, np.bool_)  # the copies in which the script acts
        self._both = PlayersByNumber(scripted.__getitem__, lambda number: self.script if number else self.policy)
        self.reward = self.policy.reward

    @property
    def state_before(self) -> Mapping[str, torch.Tensor]:
        return self.policy.state_before

    def choose(self, obs: Values, index: Any, begins: NDArray[np.bool_]) -> Action:
        """See `Player`."""
        copies = np.arange(self.policy.copies)[index]
        if begins.any():
            self._scripted[copies[begins]] = not self.learned()
        if self._scripted[copies].any():
            return self._both.choose(obs, copies, begins)
        return self.policy.choose(obs, index, begins)


@dataclass
class PlayersByNumber:
    """Plays an agent by several players; in each copy, one of them acts."""

    numbers_in: Callable[[NDArray[np.int64]], NDArray[np.int64]]  # copies [k] to the numbers [k] of their players
    player_of: Callable[[int], Player]

    def choose(self, obs: Values, index: NDArray[np.int64], begins: NDArray[np.bool_]) -> Action:
        def choose(number: int, rows: NDArray[np.bool_]) -> NDArray[Any]:
            return self.player_of(number).choose(rows_at(obs, rows), index[rows], begins[rows]).action

        return Action(joined(self.numbers_in(index), choose))

    def reward(self, reward: NDArray[Any], index: NDArray[np.int64]) -> None:
        numbers = self.numbers_in(index)
        for number in np.unique(numbers).tolist():
            rows = numbers == number
            self.player_of(number).reward(reward[rows], index[rows])


class PlayersByShare(PlayersByNumber):
    """Plays each episode by one of several players, drawn by their shares."""

    def __init__(self, players: Sequence[Player], shares: Any, copies: int, generator: np.random.Generator) -> None:
        self._drawn = np.zeros(copies, np.int64)  # by copy, the index of its player
        self._shares, self._generator = shares, generator
        super().__init__(self._drawn.__getitem__, players.__getitem__)

    def choose(self, obs: Values, index: Any, begins: NDArray[np.bool_]) -> Action:
        copies = np.arange(len(self._drawn))[index]
        begin = copies[begins]
        self._drawn[begin] = self._generator.choice(len(self._shares), len(begin), p=self._shares)
        return super().choose(obs, copies, begins)

    def reward(self, reward: NDArray[Any], index: Any) -> None:
        super().reward(reward, np.arange(len(self._drawn))[index])


def joined(numbers: NDArray[Any], choose: Callable[[int, NDArray[np.bool_]], NDArray[Any]]) -> NDArray[Any]:
    """Returns actions [k, ...] for rows with numbers [k]; calls `choose` once per number, with the mask of its rows."""
    different = np.unique(numbers).tolist()
    chosen = [(rows := numbers == number, choose(number, rows)) for number in different]
    first = chosen[0][1]
    action = np.empty((len(numbers), *first.shape[1:]), first.dtype)
    for rows, part in chosen:
        action[rows] = part
    return action
