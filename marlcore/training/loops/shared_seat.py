"""An agent in all copies, for which several policies learn: in each episode one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...interfaces import Outcome, Turn
from .seat import Ended, Seat


@dataclass(frozen=True)
class SharedSeat:
    """The seats of an agent, one a policy. See `Seat`, whose methods it has."""

    seats: Sequence[Seat]
    learning: NDArray[np.int64]  # [copies]: the place of the policy whose episode it is

    def pull_if_due(self, rounds: int) -> None:
        """For all policies, since those that do not learn in an episode may be opponents in it."""
        for seat in self.seats:
            seat.pull_if_due(rounds)

    def record(self, outcome: Outcome) -> None:
        for seat, rows in self._split(outcome.copies):
            seat.record(outcome.part(rows))

    def end(self, copies: NDArray[np.int64]) -> list[Ended]:
        return [ended for seat, rows in self._split(copies) for ended in seat.end(copies[rows])]

    def begin(self, copies: NDArray[np.int64]) -> int:
        """Begins for all policies, since the last episode may have been another one's."""
        return sum(seat.begin(copies) for seat in self.seats)

    def act(self, turn: Turn) -> NDArray[Any]:
        chosen = [(seat.act(turn.part(rows)), rows) for seat, rows in self._split(turn.copies)]
        first, _ = chosen[0]
        action = np.empty((len(turn.copies), *first.shape[1:]), first.dtype)
        for part, rows in chosen:
            action[rows] = part
        return action

    def _split(self, copies: NDArray[np.int64]) -> Iterator[tuple[Seat, NDArray[np.bool_]]]:
        """The seats whose episodes go on in some of these copies, and where."""
        learning = self.learning[copies]
        for place, seat in enumerate(self.seats):
            rows = learning == place
            if rows.any():
                yield seat, rows
