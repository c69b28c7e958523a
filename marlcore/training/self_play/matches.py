"""Who plays whom in an actor's copies of the environment: one opponent an episode, drawn where it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...interfaces import Outcome, Turn
from ...observations import rows_at
from ..choosers import Chooser, choose_by_number, tell_by_number
from .odds import LATEST, name_of
from .players import FrozenPlayers
from .settings import BOTH, SelfPlayConfig

__all__ = ["Matches"]


class Matches:
    """The present match of each copy: the learning policy's side and its opponent.

    Args:
        config: the settings.
        agents: the two sides.
        ended: int64 [copies], of the environment: episodes ended.
        published: what came with the policy's weights: the opponents' numbers and their odds.
        frozen: players of the pool.
        anchors: players, in the order of config.anchors.
        route: the number of a tag's part of the replay.
        generator: for the draws.

    Attributes:
        parts: int64 [copies], the part of the replay for the match's rows.
    """

    def __init__(
        self,
        config: SelfPlayConfig,
        agents: Sequence[str],
        ended: NDArray[np.int64],
        published: Callable[[], Mapping[str, Any]],
        frozen: FrozenPlayers,
        anchors: Sequence[Chooser],
        route: Callable[[str], int],
        generator: np.random.Generator,
    ) -> None:
        self._config = config
        self._agents = list(agents)
        self._ended = ended
        self._published = published
        self._frozen = frozen
        self._anchors = anchors
        self._route = route
        self._generator = generator
        copies = len(ended)
        self._episodes = np.full(copies, -1)  # of which the match was drawn
        self._sides = np.arange(copies) % 2  # of the learning policy
        self._opponents = np.zeros(copies, np.int64)
        self.parts = np.zeros(copies, np.int64)

    def begin(self, turn: Turn) -> None:
        """Draws the matches of episodes that begin with this turn."""
        copies = turn.copies[turn.begins]
        copies = copies[self._episodes[copies] != self._ended[copies]]
        if not len(copies):
            return
        for copy in copies.tolist():
            self._opponents[copy] = number = self._drawn()
            self.parts[copy] = self._route(name_of(number, self._config.names))
        self._episodes[copies] = self._ended[copies]
        side = self._config.side
        self._sides[copies] = 1 - self._sides[copies] if side == BOTH else self._agents.index(side)
        self._frozen.keep({*self._opponents.tolist(), *self._published()["opponents"].tolist()})

    def _drawn(self) -> int:
        """An opponent that can play; one that the pool has replaced meanwhile is drawn again."""
        published = self._published()
        numbers, odds = published["opponents"], published["odds"].copy()
        while odds.any():
            i = int(self._generator.choice(len(odds), p=odds / odds.sum()))
            number = int(numbers[i])
            if number <= LATEST or self._frozen.has(number):
                return number
            odds[i] = 0.0
        return LATEST

    def learns(self, agent: str, copies: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Where the agent's rows are the learning policy's: on its side, and on both sides against itself."""
        own = self._sides[copies] == self._agents.index(agent)
        learns: NDArray[np.bool_] = own | (self._opponents[copies] == LATEST)
        return learns

    def opponent(self, copy: int) -> int:
        """The number of the opponent in a copy."""
        return int(self._opponents[copy])

    def choose(self, turn: Turn) -> NDArray[Any]:
        """The actions [k, ...] of the opponents in the copies of a turn: one call for each distinct opponent."""
        opponents = self._opponents[turn.copies]
        return choose_by_number(opponents, self._player, turn.obs, turn.copies, turn.begins)

    def told(self, outcome: Outcome) -> None:
        """Tells the opponents their rewards."""
        tell_by_number(self._opponents[outcome.copies], self._player, outcome.reward, outcome.copies)

    def _player(self, number: int) -> Chooser:
        return self._frozen[number] if number > LATEST else self._anchors[-number - 1]


def part_of_turn(turn: Turn, which: NDArray[Any]) -> Turn:
    """The part of a turn in some of its copies: bool [k], or their places."""
    return turn._replace(copies=turn.copies[which], obs=rows_at(turn.obs, which), begins=turn.begins[which])
