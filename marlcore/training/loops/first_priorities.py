"""First priorities that an actor gives its transitions, as Ape-X does (Horgan et al. 2018, arXiv:1803.00933)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...interfaces import Outcome

Rule = Callable[[Any, NDArray[Any], float, Any], NDArray[np.float32]]  # see Algorithm.first_priority
Due = tuple[Outcome, NDArray[np.float32]]


class FirstPriorities:
    """Transitions wait for the values of their next observation; those of ended episodes do not wait.

    Args:
        rule: of the algorithm.
        discount: of one step.
        copies: of the environment.
    """

    def __init__(self, rule: Rule, discount: float, copies: int) -> None:
        self._rule = rule
        self._discount = discount
        self._copies = copies
        self._values: dict[str, NDArray[Any]] = {}  # of the observations acted on
        self._rewards = np.zeros(copies, np.float32)
        self._waits = np.zeros(copies, np.bool_)

    def of_ended(self, outcome: Outcome) -> Due | None:
        """The transitions of an outcome that end an episode, with their priorities; the others wait."""
        ended = outcome.terminated | outcome.truncated
        going = outcome.copies[~ended]
        self._rewards[going], self._waits[going] = outcome.reward[~ended], True
        if not ended.any():
            return None
        over = outcome.part(ended)
        future = np.where(over.terminated, 0.0, np.nan)
        return over, self._priorities(over.copies, over.reward, dict.fromkeys(self._values, future))

    def release(self, agent: str, copies: NDArray[np.int64], after: Mapping[str, NDArray[Any]] | None) -> Due | None:
        """The transitions that wait in these copies, with their priorities.

        Args:
            after: [k] by name, the values of the next observations; None: they never came.
        """
        waits = self._waits[copies]
        if not waits.any():
            return None
        copies = copies[waits]
        if after is None:
            future = dict.fromkeys(self._values, np.full(len(copies), np.nan))
        else:
            future = {name: values[waits] for name, values in after.items()}
        never, reward = np.zeros(len(copies), np.bool_), self._rewards[copies]
        self._waits[copies] = False
        return Outcome(agent, copies, reward, never, never, None), self._priorities(copies, reward, future)

    def remember(self, copies: NDArray[np.int64], values: Mapping[str, NDArray[Any]]) -> None:
        """Remembers the values [k] of the observations acted on now."""
        for name, rows in values.items():
            self._values.setdefault(name, np.zeros(self._copies))[copies] = rows

    def _priorities(
        self, copies: NDArray[np.int64], reward: NDArray[Any], after: Mapping[str, NDArray[Any]]
    ) -> NDArray[np.float32]:
        before = {name: values[copies] for name, values in self._values.items()}
        return self._rule(before, reward, self._discount, after)
