"""Who plays whom in an actor's copies of the environment: one opponent an episode, drawn where it begins."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...interfaces import Turn
from ..config import BOTH, SelfPlayConfig
from ..loops import LATEST, Ended, PlayersByNumber, Seat, part_of_tag
from .opponents import Opponents, name_of


@dataclass
class Matches:
    """The present match of each copy: the learning policy's side and its opponent."""

    config: SelfPlayConfig
    seats: Mapping[str, Seat]  # by agent, of the two sides; it fills their columns
    ended: NDArray[np.int64]  # [copies], of the environment: episodes ended
    published: Callable[[], Mapping[str, Any]]  # what came with the weights: the opponents' numbers and their odds
    opponents: Opponents
    parts: list[str]  # the names of the replay's parts
    generator: np.random.Generator  # draws opponents
    report: Callable[[int, str, int], None]  # opponent, agent, result of a game: 1 won, 0 drawn, -1 lost

    def __post_init__(self) -> None:
        copies = len(self.ended)
        self.present = np.zeros(copies, np.int64)  # the number of each copy's opponent
        self._episodes = np.full(copies, -1)  # of which the match was drawn
        self._sides = np.arange(copies) % 2  # of the learning policy
        for seat in self.seats.values():
            seat.opponents = PlayersByNumber(seat.numbers.__getitem__, self.opponents.__getitem__)

    def begin(self, turn: Turn) -> None:
        """Draws the matches of episodes that begin with this turn, and seats both sides."""
        copies = turn.copies[turn.begins]
        copies = copies[self._episodes[copies] != self.ended[copies]]
        if not len(copies):
            return
        agents, side = list(self.seats), self.config.side
        self._episodes[copies] = self.ended[copies]
        self._sides[copies] = 1 - self._sides[copies] if side == BOTH else agents.index(side)
        for copy in copies.tolist():
            self._seat(copy, self._drawn())
        self.opponents.keep({*self.present.tolist(), *self.published()["opponents"].tolist()})

    def _seat(self, copy: int, opponent: int) -> None:
        self.present[copy] = opponent
        part = part_of_tag(name_of(opponent, self.config.names), self.parts)
        for side, seat in enumerate(self.seats.values()):
            seat.parts[copy] = part
            seat.numbers[copy] = LATEST if side == self._sides[copy] else opponent

    def _drawn(self) -> int:
        """An opponent that can play; one that the pool has replaced meanwhile is drawn again."""
        published = self.published()
        numbers, odds = published["opponents"], published["odds"].copy()
        while odds.any():
            i = int(self.generator.choice(len(odds), p=odds / odds.sum()))
            number = int(numbers[i])
            if number == LATEST or self.opponents.load(number):
                return number
            odds[i] = 0.0
        return LATEST

    def note(self, ended: Ended) -> None:
        """Reports the results of the learning policy's games.

        The info names the winner, from the agent's point of view; otherwise the sign of the agent's return decides.
        """
        infos = dict(ended.infos)
        for copy, total in zip(ended.copies.tolist(), ended.returns.tolist(), strict=True):
            opponent = int(self.present[copy])
            if opponent != LATEST:
                winner = infos.get(copy, {}).get("winner", total)
                self.report(opponent, ended.agent, int(np.sign(winner)))
