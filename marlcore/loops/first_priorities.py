"""First priorities of transitions, computed by the actors as in Ape-X (Horgan et al. 2018, arXiv:1803.00933)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interfaces import PRIORITY, Outcome
from .recorder import Recorder

ByName = Mapping[str, NDArray[Any]]
FirstPriority = Callable[[ByName, NDArray[Any], ByName], NDArray[np.float32]]  # before, reward, after


class FirstPriorities:
    """Holds each row back until the next observation's values are known or the episode ends, then writes the row."""

    def __init__(self, recorder: Recorder, compute: FirstPriority) -> None:
        self._recorder, self._compute = recorder, compute
        self._waiting = np.zeros(recorder.copies, np.bool_)  # copies whose row waits for the next observation's values
        self._rewards = np.zeros(recorder.copies, np.float32)  # of the waiting rows
        self._values: dict[str, NDArray[Any]] = {}  # of the observations acted on

    def begin(self, copies: NDArray[np.int64]) -> None:
        """Writes the rows still held back in copies where an episode begins, since no next values will come."""
        waiting = copies[self._waiting[copies]]
        if len(waiting):
            self._write_waiting(waiting, dict.fromkeys(self._values, np.full(len(waiting), np.nan)))

    def remember(self, copies: NDArray[np.int64], values: ByName) -> None:
        """Takes the values [k] of the current observations, and writes the rows that waited for them."""
        waiting = self._waiting[copies]
        if waiting.any():
            self._write_waiting(copies[waiting], {name: rows[waiting] for name, rows in values.items()})
        for name, rows in values.items():
            self._values.setdefault(name, np.zeros(len(self._waiting)))[copies] = rows

    def write(self, outcome: Outcome) -> None:
        """Writes the rows that end an episode, and holds back the others."""
        ended = outcome.terminated | outcome.truncated
        waiting = outcome.copies[~ended]
        self._waiting[waiting], self._rewards[waiting] = True, outcome.reward[~ended]
        if ended.any():
            outcome = outcome.part(ended)
            self._write(outcome, dict.fromkeys(self._values, np.where(outcome.terminated, 0.0, np.nan)))

    def _write_waiting(self, copies: NDArray[np.int64], after: ByName) -> None:
        never = np.zeros(len(copies), np.bool_)
        self._waiting[copies] = False
        self._write(Outcome(self._recorder.agent, copies, self._rewards[copies], never, never, None), after)

    def _write(self, outcome: Outcome, after: ByName) -> None:
        """Writes rows with priorities; `after` has the values [k] of the next observations, NaN where none came."""
        before = {name: rows[outcome.copies] for name, rows in self._values.items()}
        self._recorder.rows.extras[PRIORITY][outcome.copies] = self._compute(before, outcome.reward, after)
        self._recorder.write(outcome)
