"""The arrays of the states' transitions that grow while a world model is enumerated."""

from __future__ import annotations

import traceback
from array import array
from collections.abc import Hashable, Sequence
from contextlib import suppress
from itertools import islice, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..errors import WorldModelFailed, pass_on_from_handler
from .model import Profiles, Transition

SAMPLE = 32  # the most states to expand again; also at most 1 + a sixteenth of the states with transitions
TOLERANCE = 1e-6  # of a sum of probabilities


class Expansion:
    """The transitions of some states; states are numbered in the order in which they first occur."""

    def __init__(self, *states: Hashable) -> None:
        self.states = [*states]  # in the order of their numbers
        self._numbers = {state: number for number, state in enumerate(states)}
        self.rows = array("i")  # by expanded state: its possible profiles
        self.profile, self.outcomes = array("i"), array("i")  # by possible profile: its index, its number of outcomes
        self.successor, self.probability = array("i"), array("d")  # by outcome
        self._checked = (0, 0, 0)  # expanded states, possible profiles and outcomes

    def add(self, transition: Transition, profiles: Profiles, state: Any) -> None:
        """Expands a state: adds its transitions. Raises WorldModelFailed, or TypeError if a successor has no hash."""
        numbers, successor, probability = self._numbers, self.successor.append, self.probability.append
        number = numbers.setdefault
        rows = len(self.profile)
        pairs: Any = None
        try:
            for index, actions in enumerate(profiles):
                pairs = transition(state, actions)
                if pairs is None:
                    continue
                for chance, reached in pairs:
                    successor(number(reached, len(numbers)))
                    probability(chance)
                self.profile.append(index)
                self.outcomes.append(len(pairs))
        except Exception as error:
            pass_on_from_handler(error)
            raise _explained(error, state, actions, pairs) from error
        self.rows.append(len(self.profile) - rows)
        self._list_new_states()

    def extend(self, other: Expansion) -> None:
        """Appends the transitions and the new states of another expansion; both expansions must have passed `check`."""
        numbers = self._numbers
        numbered = np.array([numbers.setdefault(state, len(numbers)) for state in other.states], np.int32)
        self.successor.frombytes(numbered[np.asarray(other.successor)].tobytes())
        self.rows += other.rows
        self.profile += other.profile
        self.outcomes += other.outcomes
        self.probability += other.probability
        self._checked = (len(self.rows), len(self.profile), len(self.successor))
        self._list_new_states()

    @property
    def nbytes(self) -> int:
        arrays = (self.rows, self.profile, self.outcomes, self.successor, self.probability)
        return sum(array.itemsize * len(array) for array in arrays)

    @property
    def first(self) -> NDArray[np.int64]:
        """The index of each state's first outcome, int64 [expanded states + 1]; the last entry counts all outcomes."""
        return _starts(self.outcomes)[_starts(self.rows)]

    def check(self, expanded: Sequence[Any], profiles: Profiles) -> None:
        """Checks the probabilities of the states expanded since the last check. Raises ValueError if they are wrong."""
        states, rows, outcomes = self._checked
        counts = np.asarray(self.rows)[states:]
        lengths = np.asarray(self.outcomes)[rows : rows + int(counts.sum())]
        chances = np.asarray(self.probability)[outcomes : outcomes + int(lengths.sum())]
        row_of = np.repeat(np.arange(len(lengths)), lengths)
        wrong = ~(np.abs(np.bincount(row_of, chances, len(lengths)) - 1.0) <= TOLERANCE)
        wrong[row_of[chances < 0.0]] = True
        if wrong.any():
            row = int(np.argmax(wrong))
            state = expanded[states + int(np.searchsorted(np.cumsum(counts), row, "right"))]
            raise ValueError(
                "transition_probabilities: expected probabilities of at least 0 that sum to 1, got "
                f"{brief(chances[row_of == row].tolist())} in state {brief(state)} with profile "
                f"{profiles[self.profile[rows + row]]}"
            )
        self._checked = (states + len(counts), rows + len(lengths), outcomes + len(chances))

    def check_repeats(self, transition: Transition, profiles: Profiles) -> None:
        """Expands a sample of states again, in this process. Raises ValueError if a state's transitions differ."""
        live = np.flatnonzero(self.rows)
        count = min(SAMPLE, len(live), 1 + len(live) // 16)
        sample = live[np.linspace(0, len(live) - 1, count).astype(int)]
        first_row, first_outcome = _starts(self.rows), _starts(self.outcomes)
        for number in sample.tolist():
            again = Expansion()
            again.add(transition, profiles, self.states[number])
            rows = range(first_row[number], first_row[number + 1])
            earlier = self._answers(rows, int(first_outcome[rows.start]))
            later = again._answers(range(again.rows[0]), 0)
            if earlier != later:
                index = min(index for index in earlier | later if earlier.get(index) != later.get(index))
                first: Any = earlier.get(index)
                second: Any = later.get(index)
                if first is not None and second is not None:
                    first, second = next(pair for pair in zip_longest(first, second) if pair[0] != pair[1])
                raise ValueError(
                    f"transition_probabilities: expected the same answer twice, got {brief(first)} and then "
                    f"{brief(second)} in state {brief(self.states[number])} with profile {profiles[index]}"
                )

    def _answers(self, rows: range, outcome: int) -> dict[int, list[tuple[float, Any]]]:
        """Returns the (probability, successor) pairs of rows, keyed by profile; `outcome` is the first pair's index."""
        answers = {}
        for row in rows:
            outcomes = range(outcome, outcome := outcome + self.outcomes[row])
            answers[self.profile[row]] = [(self.probability[i], self.states[self.successor[i]]) for i in outcomes]
        return answers

    def _list_new_states(self) -> None:
        new = len(self._numbers) - len(self.states)
        self.states += [*islice(reversed(self._numbers), new)][::-1]


def _starts(counts: array[int]) -> NDArray[np.int64]:
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    return starts


def _explained(error: Exception, state: Any, profile: tuple[int, ...], pairs: Any) -> Exception:
    with suppress(TypeError, ValueError):  # an item may not be a pair
        for _, successor in pairs if isinstance(error, TypeError) else ():
            try:
                hash(successor)
            except TypeError:
                where = f"a successor of {brief(state)} with profile {profile}"
                return TypeError(f"state: expected something hashable, got {brief(successor)}, {where}")
    return WorldModelFailed(state, profile, traceback.format_exc())
