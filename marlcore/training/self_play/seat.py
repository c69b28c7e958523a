"""An agent's seat in self-play: the learning policy acts in some copies, its opponents in the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...interfaces import Outcome, Turn
from ..actor import Seat, part_of
from .matches import Matches, part_of_turn
from .odds import LATEST

__all__ = ["SharedSeat"]

Result = Callable[[int, str, int], None]


class SharedSeat:
    """A seat that the learning policy shares with its opponents, whose rows are not written.

    Args:
        agent: its name.
        seat: the learning policy's.
        matches: of all copies.
        report: called with (opponent, agent, result) where an episode of the learning policy ends: 1 won, 0 drawn,
            -1 lost. The winner is the one that the info names, from the agent's point of view; otherwise the sign of
            the agent's return decides.
    """

    def __init__(self, agent: str, seat: Seat, matches: Matches, report: Result) -> None:
        self._agent = agent
        self._seat = seat
        self._matches = matches
        self._report = report

    def finish(self, outcome: Outcome) -> None:
        """Takes in the results of earlier actions."""
        learns = self._matches.learns(self._agent, outcome.copies)
        if not learns.all():
            self._matches.told(part_of(outcome, ~learns))
        if not learns.any():
            return
        own = outcome if learns.all() else _part_with_infos(outcome, learns)
        self._seat.finish(own)
        ended = own.terminated | own.truncated
        if ended.any():
            self._report_results(own.copies[ended].tolist(), dict(own.infos))

    def _report_results(self, copies: list[int], infos: dict[int, Any]) -> None:
        for copy in copies:
            opponent = self._matches.opponent(copy)
            if opponent != LATEST:
                winner = infos.get(copy, {}).get("winner", self._seat.return_of(copy))
                self._report(opponent, self._agent, int(np.sign(winner)))

    def act(self, turn: Turn) -> NDArray[Any]:
        """Chooses the actions of a turn."""
        self._matches.begin(turn)
        learns = self._matches.learns(self._agent, turn.copies)
        if learns.all():
            return self._seat.act(turn)
        theirs = self._matches.choose(part_of_turn(turn, ~learns))
        if not learns.any():
            return theirs
        own = self._seat.act(part_of_turn(turn, learns))
        action = np.empty((len(learns), *own.shape[1:]), own.dtype)
        action[learns], action[~learns] = own, theirs
        return action


def _part_with_infos(outcome: Outcome, which: NDArray[np.bool_]) -> Outcome:
    copies = set(outcome.copies[which].tolist())
    return part_of(outcome, which)._replace(infos=[info for info in outcome.infos if info[0] in copies])
