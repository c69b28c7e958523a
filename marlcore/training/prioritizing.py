"""An actor's seat that gives each transition its first priority, as Ape-X does (Horgan et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interfaces import PRIORITY, Action, Outcome, Turn
from .actor import Seat, part_of

__all__ = ["FirstPriority", "PrioritizingSeat"]

FirstPriority = Callable[[Any, NDArray[Any], float, Any], NDArray[np.float32]]  # see Algorithm.first_priority


class PrioritizingSeat(Seat):
    """A seat whose transitions wait for the values of the next observation; those of ended episodes do not wait.

    Args:
        first_priority: of the algorithm.
        discount: of one step.
        options: the arguments of Seat.
    """

    def __init__(self, first_priority: FirstPriority, discount: float, *options: Any) -> None:
        super().__init__(*options)
        copies = len(self._lanes)
        self._first_priority = first_priority
        self._discount = discount
        self._values: dict[str, NDArray[Any]] = {}
        self._rewards = np.zeros(copies, np.float32)
        self._owed = np.zeros(copies, np.bool_)  # whose transition still waits

    def _write(self, outcome: Outcome, some_ended: bool) -> None:
        ended = outcome.terminated | outcome.truncated
        copies = outcome.copies[~ended]
        self._rewards[copies], self._owed[copies] = outcome.reward[~ended], True
        if not some_ended:
            return
        over = part_of(outcome, ended)
        future = np.where(over.terminated, 0.0, np.nan)
        self._put_priorities(over.copies, over.reward, dict.fromkeys(self._values, future))
        super()._write(over, True)

    def _settle(self, turn: Turn, chosen: Action) -> None:
        owed = self._owed[turn.copies]
        if owed.any():
            after = {name: values[owed] for name, values in chosen.values.items()}
            self._write_owed(turn.copies[owed], after)
        for name, values in chosen.values.items():
            self._values.setdefault(name, np.zeros(len(self._lanes)))[turn.copies] = values

    def _begin(self, copies: NDArray[np.int64]) -> None:
        left = copies[self._owed[copies]]  # their episode ended for all before this agent's next turn
        if len(left):
            self._write_owed(left, dict.fromkeys(self._values, np.full(len(left), np.nan)))
            self.writer.new_episode(self._lanes[left])
        super()._begin(copies)

    def _write_owed(self, copies: NDArray[np.int64], after: dict[str, NDArray[Any]]) -> None:
        self._put_priorities(copies, self._rewards[copies], after)
        never = np.zeros(len(copies), np.bool_)
        super()._write(Outcome(self._agent, copies, self._rewards[copies], never, never, None), False)
        self._owed[copies] = False

    def _put_priorities(self, copies: NDArray[np.int64], reward: NDArray[Any], after: dict[str, NDArray[Any]]) -> None:
        before = {name: values[copies] for name, values in self._values.items()}
        self._extras[PRIORITY][copies] = self._first_priority(before, reward, self._discount, after)
