"""Who plays whom in an actor's copies of the environment: one opponent an episode, drawn where it begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...interfaces import Turn
from ..config import BOTH, SelfPlayConfig
from ..loops import LEARNS, Ended, Player, Seat
from ..workers import part_of_tag
from .odds import LATEST, name_of
from .players import FrozenPlayers

Report = Callable[[int, str, int], None]


class Matches:
    """The present match of each copy: the learning policy's side and its opponent.

    Args:
        config: the settings.
        seats: by agent, of the two sides; it fills their columns.
        ended: int64 [copies], of the environment: episodes ended.
        published: returns what came with the policy's weights: the opponents' numbers and their odds.
        frozen: players of the pool.
        anchors: players, in the order of config.anchors.
        parts: the names of the replay's parts.
        generator: draws opponents.
        report: called with (opponent, agent, result) where an episode of the learning policy ends: 1 won, 0 drawn,
            -1 lost. The winner is the one that the info names, from the agent's point of view; otherwise the sign of
            the agent's return decides.
    """

    def __init__(
        self,
        config: SelfPlayConfig,
        seats: Mapping[str, Seat],
        ended: NDArray[np.int64],
        published: Callable[[], Mapping[str, Any]],
        frozen: FrozenPlayers,
        anchors: Sequence[Player],
        parts: list[str],
        generator: np.random.Generator,
        report: Report,
    ) -> None:
        self._config = config
        self._seats = seats
        self._ended = ended
        self._published = published
        self._frozen = frozen
        self._anchors = anchors
        self._parts = parts
        self._generator = generator
        self._report = report
        self._episodes = np.full(len(ended), -1)  # of which the match was drawn
        self._sides = np.arange(len(ended)) % 2  # of the learning policy
        self.opponents = np.zeros(len(ended), np.int64)
        for seat in seats.values():
            seat.opponent = self._player

    def begin(self, turn: Turn) -> None:
        """Draws the matches of episodes that begin with this turn, and seats both sides."""
        copies = turn.copies[turn.begins]
        copies = copies[self._episodes[copies] != self._ended[copies]]
        if not len(copies):
            return
        agents, side = list(self._seats), self._config.side
        self._episodes[copies] = self._ended[copies]
        self._sides[copies] = 1 - self._sides[copies] if side == BOTH else agents.index(side)
        for copy in copies.tolist():
            self._seat(copy, self._drawn())
        self._frozen.keep({*self.opponents.tolist(), *self._published()["opponents"].tolist()})

    def _seat(self, copy: int, opponent: int) -> None:
        self.opponents[copy] = opponent
        part = part_of_tag(name_of(opponent, self._config.names), self._parts)
        for side, seat in enumerate(self._seats.values()):
            seat.parts[copy] = part
            seat.numbers[copy] = LEARNS if side == self._sides[copy] else opponent

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

    def note(self, ended: Ended) -> None:
        """Reports the results of the learning policy's games."""
        infos = dict(ended.infos)
        for copy, total in zip(ended.copies.tolist(), ended.returns.tolist(), strict=True):
            opponent = int(self.opponents[copy])
            if opponent != LATEST:
                winner = infos.get(copy, {}).get("winner", total)
                self._report(opponent, ended.agent, int(np.sign(winner)))

    def _player(self, number: int) -> Player:
        return self._frozen[number] if number > LATEST else self._anchors[-number - 1]
