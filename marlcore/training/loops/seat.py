"""An agent in all copies of the environment, as columns: its last actions, whose outcomes are still to come."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...checks import check_finite
from ...errors import EnvironmentFailed
from ...interfaces import PRIORITY, Action, Outcome, Turn
from ...observations import each, put_rows, rows_at
from ...spec import TransitionSpec, rows_of
from ...transitions import VectorWriter
from .first_priorities import FirstPriorities
from .players import Player, choose_by_number, reward_by_number
from .policy import PolicyPlayer

LEARNS = 0  # the number of the policy that learns, beside those of its opponents


class Ended(NamedTuple):
    """Episodes that ended for an agent, of the policy that learns.

    Attributes:
        copies: int64 [k], of the environment.
        returns: float64 [k]. lengths: int64 [k], its actions.
        infos: (copy, numbers by name).
    """

    agent: str
    copies: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    infos: Sequence[tuple[int, Mapping[str, float]]]


class Seat:
    """An agent in all copies.

    Args:
        agent: its name.
        player: chooses the actions of the policy that learns.
        writer: appends its transitions, those of copy i to `lanes[i]`.
        spec: the fields of its rows.
        lanes: int64 [copies], or [parts, copies] where the replay has several parts.
        first_priorities: of its transitions; None leaves them to the replay.

    Attributes:
        parts: int64 [copies], the part of the replay for the rows of each copy's episode.
        numbers: int64 [copies], who acts in each copy's episode: LEARNS, whose rows are written, or an opponent.
        opponent: the player of such a number; unused while all learn.
    """

    def __init__(
        self,
        agent: str,
        player: PolicyPlayer,
        writer: VectorWriter,
        spec: TransitionSpec,
        lanes: NDArray[np.int64],
        first_priorities: FirstPriorities | None = None,
    ) -> None:
        self._agent = agent
        self._player = player
        self._writer = writer
        self._spec = spec
        self._lanes_of_parts = np.atleast_2d(lanes)
        self._lanes = self._lanes_of_parts[0].copy()  # of the present episodes
        self._first_priorities = first_priorities
        copies = len(self._lanes)
        self.parts, self.numbers = np.zeros((2, copies), np.int64)
        self.opponent: Callable[[int], Player] | None = None
        self._obs = each(lambda field: field.zeros(copies), spec.obs)
        self._action = spec.action.zeros(copies)
        self._extras = {name: field.zeros(copies) for name, field in spec.extras.items()}
        self._waiting = np.zeros(copies, np.bool_)
        self._versions = np.zeros(copies, np.int64)
        self._returns, self._lengths = np.zeros(copies), np.zeros(copies, np.int64)

    def record(self, outcome: Outcome) -> Ended | None:
        """Takes in the results of earlier actions: writes the transitions that they complete.

        Returns: the episodes that ended; None if none did.
        """
        if self.opponent is not None:
            learns = self._learns(outcome.copies)
            if not learns.all():
                theirs = outcome.part(~learns)
                reward_by_number(self.numbers[theirs.copies], self.opponent, theirs.reward, theirs.copies)
                outcome = outcome.part(learns)
            if not len(outcome.copies):
                return None
        if self._first_priorities is None:
            self._write(outcome)
        else:
            self._write_with(self._first_priorities.of_ended(outcome))
        at = self._at(outcome.copies)
        self._waiting[at] = False
        self._player.reward(outcome.reward, at)
        self._returns[at] += outcome.reward
        self._lengths[at] += 1
        ended = outcome.copies[outcome.terminated | outcome.truncated]
        if not len(ended):
            return None
        return Ended(self._agent, ended, self._returns[ended], self._lengths[ended], outcome.infos)

    def begin(self, copies: NDArray[np.int64]) -> int:
        """Begins an episode in these copies; returns how many actions are lost, since their outcomes never came."""
        if self._first_priorities is not None:
            # Their episode ended for all before this agent's next turn.
            due = self._first_priorities.release(self._agent, copies, None)
            self._write_with(due)
            if due is not None:
                self._writer.new_episode(self._lanes[due[0].copies])
        lost = copies[self._waiting[copies]]
        if len(lost):
            self._writer.new_episode(self._lanes[lost])
            self._waiting[lost] = False
        self._returns[copies], self._lengths[copies] = 0.0, 0
        self._lanes[copies] = self._lanes_of_parts[self.parts[copies], copies]
        return len(lost)

    def act(self, turn: Turn) -> NDArray[Any]:
        """Chooses the actions of a turn, and remembers those of the policy that learns for their outcome."""
        if self.opponent is None or (learns := self._learns(turn.copies)).all():
            return self._act(turn)
        theirs = turn.part(~learns)
        others = choose_by_number(self.numbers[theirs.copies], self.opponent, theirs.obs, theirs.copies, theirs.begins)
        action = np.empty((len(learns), *others.shape[1:]), others.dtype)
        action[~learns] = others
        if learns.any():
            action[learns] = self._act(turn.part(learns))
        return action

    def _act(self, turn: Turn) -> NDArray[Any]:
        at = self._at(turn.copies)
        chosen = self._player.choose(turn.obs, at, turn.begins)
        if self._first_priorities is not None:
            self._write_with(self._first_priorities.release(self._agent, turn.copies, chosen.values))
            self._first_priorities.remember(turn.copies, chosen.values)
        self._remember_extras(at, chosen, len(turn.copies))
        put_rows(self._obs, at, turn.obs)
        self._action[at] = chosen.action
        self._versions[at] = self._player.policy.version
        self._waiting[at] = True
        return chosen.action

    def _remember_extras(self, at: Any, chosen: Action, rows: int) -> None:
        """Remembers the extras of `rows` actions; of those that are parts of the recurrent state, the state before."""
        missing = self._extras.keys() - chosen.extras.keys()
        state = {name: part.numpy(force=True) for name, part in self._player.before.items() if name in missing}
        if chosen.extras.keys() | state.keys() != self._extras.keys():
            raise ValueError(
                f"extras of the algorithm: expected {sorted(self._extras.keys() - state.keys())}, "
                f"as its transition says, got {sorted(chosen.extras)}"
            )
        for name, field in self._spec.extras.items():
            value, owner = (state[name], "algorithm's state") if name in state else (chosen.extras[name], "algorithm")
            array = rows_of(f"{name} of the {owner}", field, value, rows)
            if array.dtype.kind in "fc" and name not in state and name != PRIORITY:  # whose NaN means the highest
                check_finite(f"{name} of the {owner}", array)
            self._extras[name][at] = array

    def _write_with(self, due: tuple[Outcome, NDArray[np.float32]] | None) -> None:
        """Writes transitions with their first priorities."""
        if due is not None:
            outcome, priority = due
            self._extras[PRIORITY][outcome.copies] = priority
            self._write(outcome)

    def _write(self, outcome: Outcome) -> None:
        versions = self._versions[self._at(outcome.copies)]
        if (versions == versions[0]).all():
            self._add(outcome, int(versions[0]))
            return
        for version in np.unique(versions).tolist():  # weights came after the actions of some copies
            self._add(outcome.part(versions == version), version)

    def _add(self, outcome: Outcome, version: int) -> None:
        self._writer.policy_version = version
        at = self._at(outcome.copies)
        some_ended = bool((outcome.terminated | outcome.truncated).any())
        try:
            self._writer.add(
                rows_at(self._obs, at),
                self._action[at],
                outcome.reward,
                outcome.terminated if some_ended else None,
                outcome.truncated if some_ended else None,
                outcome.final_obs if some_ended and outcome.truncated.any() else None,
                None if isinstance(at, slice) and len(self._lanes_of_parts) == 1 else self._lanes[at],
                **{name: rows[at] for name, rows in self._extras.items()},
            )
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{self._agent}: {error}") from error

    def _learns(self, copies: NDArray[np.int64]) -> NDArray[np.bool_]:
        learns: NDArray[np.bool_] = self.numbers[copies] == LEARNS
        return learns

    def _at(self, copies: NDArray[np.int64]) -> Any:
        """An index of these copies' rows; all of them need no copy."""
        return slice(None) if len(copies) == len(self._lanes) else copies
