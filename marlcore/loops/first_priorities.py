"""First priorities of transitions, which Ape-X's actors compute (Horgan et al. 2018, arXiv:1803.00933)."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..interfaces import PRIORITY, Outcome
from .recorder import Recorder

ByName = Mapping[str, NDArray[Any]]
FirstPriority = Callable[[ByName, NDArray[Any], ByName], NDArray[np.float32]]  # before, reward, after


class FirstPriorities:
    """Writes a recorder's row when the values of its next observation are known, or its episode has ended."""

    def __init__(self, recorder: Recorder, compute: FirstPriority) -> None:
        self._recorder, self._compute = recorder, compute
        self._held = np.zeros(recorder.copies, np.bool_)  # rows whose next values are still to come
        self._rewards = np.zeros(recorder.copies, np.float32)  # of these
        self._values: dict[str, NDArray[Any]] = {}  # of the observations acted on

    def begin(self, copies: NDArray[np.int64]) -> None:
        """Writes the rows in copies where an episode begins, so that their next values never come."""
        held = copies[self._held[copies]]
        if len(held):
            self._write_held(held, dict.fromkeys(self._values, np.full(len(held), np.nan)))

    def remember(self, copies: NDArray[np.int64], values: ByName) -> None:
        """Takes the values [k] of the observations acted on now, with which it writes the rows before."""
        held = self._held[copies]
        if held.any():
            self._write_held(copies[held], {name: rows[held] for name, rows in values.items()})
        for name, rows in values.items():
            self._values.setdefault(name, np.zeros(len(self._held)))[copies] = rows

    def write(self, outcome: Outcome) -> None:
        """Writes the rows that end an episode, and holds the others."""
        ended = outcome.terminated | outcome.truncated
        held = outcome.copies[~ended]
        self._held[held], self._rewards[held] = True, outcome.reward[~ended]
        if ended.any():
            outcome = outcome.part(ended)
            self._write(outcome, dict.fromkeys(self._values, np.where(outcome.terminated, 0.0, np.nan)))

    def _write_held(self, copies: NDArray[np.int64], after: ByName) -> None:
        never = np.zeros(len(copies), np.bool_)
        self._held[copies] = False
        self._write(Outcome(self._recorder.agent, copies, self._rewards[copies], never, never, None), after)

    def _write(self, outcome: Outcome, after: ByName) -> None:
        """Writes rows with the values [k] of their next observations; NaN where these never came."""
        before = {name: rows[outcome.copies] for name, rows in self._values.items()}
        self._recorder.rows.extras[PRIORITY][outcome.copies] = self._compute(before, outcome.reward, after)
        self._recorder.write(outcome)
