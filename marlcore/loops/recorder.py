"""Records one agent's rows in all copies: keeps the last actions in columns until their outcomes come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..checks import check_finite
from ..errors import EnvironmentFailed
from ..interfaces import MEMBER_REWARDS, OF_OUTCOMES, PRIORITY, RETURN, Action, Outcome, Turn
from ..observations import put_rows
from ..spec import Field, TransitionSpec, rows_of
from ..transitions import HeldRows

if TYPE_CHECKING:
    import torch

ByName = Mapping[str, NDArray[Any]]
FirstPriority = Callable[[ByName, NDArray[Any], ByName], NDArray[np.float32]]  # before, reward, after
ALL = slice(None)  # indexes the rows of all copies without copying them


@dataclass
class Recorder:
    """Writes a row for each action of an agent once the action's outcome is known."""

    agent: str
    rows: HeldRows  # one for each copy
    spec: TransitionSpec
    lanes: NDArray[np.int64]  # [copies], or [parts, copies] if the replay has several parts
    gamma: float = 1.0  # the discount for the extra RETURN
    stores_every_end: bool = False  # whether to store final observations of terminated episodes, too, for hindsight

    def __post_init__(self) -> None:
        spec, self.lanes = self.spec, np.atleast_2d(self.lanes)
        self.copies = copies = self.lanes.shape[1]
        self.parts = np.zeros(copies, np.int64)  # by copy: the part of the replay for the next episode
        self._lanes = self.lanes[0].copy()  # by copy: the lane of the present episode
        self._of_algorithm = {name: field for name, field in spec.extra_fields.items() if name not in OF_OUTCOMES}
        self._sums_returns, self._shares_rewards = RETURN in spec.extras, MEMBER_REWARDS in spec.extras
        self.takes_outcomes = self._sums_returns or self._shares_rewards  # whether `take` has anything to do
        self._discounted = np.zeros(copies)
        self._version: int | None = 0  # of the weights that chose the last actions; None if copies may differ
        self._versions = np.zeros(copies, np.int64)  # by copy, if they may differ
        self._written: int | None = None  # the version that the writer stores
        self._waiting = np.zeros(copies, np.bool_)  # whether an action waits for its outcome

    def begin(self, copies: NDArray[np.int64]) -> int:
        """Begins an episode in these copies; returns the number of lost actions, whose outcomes never came."""
        # Mark the last episode's end: it may have ended before this agent's next turn, without a row that says so.
        self.rows.writer.new_episode(self._lanes[copies])
        lost = copies[self._waiting[copies]]
        self._waiting[lost] = False
        if self._sums_returns:
            self._discounted[copies] = 0.0
        if len(self.lanes) > 1:
            self._lanes[copies] = self.lanes[self.parts[copies], copies]
        return len(lost)

    def remember(self, turn: Turn, chosen: Action, state_before: Mapping[str, torch.Tensor], version: int) -> None:
        """Keeps a turn's actions, and the recurrent state before them, until their outcomes come."""
        index = ALL if len(turn.copies) == self.copies else turn.copies
        if self._of_algorithm or chosen.extras:
            self._remember_extras(index, chosen, state_before, len(turn.copies))
        put_rows(self.rows.obs, index, turn.obs)
        self.rows.action[index] = chosen.action
        self._waiting[index] = True
        if version != self._version:
            if index is not ALL and self._version is not None:
                self._versions[:] = self._version
            self._versions[index] = version
            self._version = version if index is ALL else None

    def _remember_extras(self, index: Any, chosen: Action, state_before: Mapping[str, torch.Tensor], rows: int) -> None:
        """Keeps the extras of `rows` actions; some extras may be parts of the recurrent state before the action."""
        state: dict[str, NDArray[Any]] = {}
        if chosen.extras.keys() != self._of_algorithm.keys():
            missing = self._of_algorithm.keys() - chosen.extras.keys()
            state = {name: part.numpy(force=True) for name, part in state_before.items() if name in missing}
            if chosen.extras.keys() | state.keys() != self._of_algorithm.keys():
                raise ValueError(
                    f"extras of the algorithm: expected the names {sorted(self._of_algorithm.keys() - state.keys())}, "
                    f"declared in its transition, got {sorted(chosen.extras)}"
                )
        for name, part in state.items():
            label = f"{name} of the algorithm's state"
            self.rows.extras[name][index] = rows_of(label, self._of_algorithm[name], part, rows)
        for name, value in chosen.extras.items():
            label, field = f"{name} of the algorithm", self._of_algorithm[name]
            array = rows_of(label, field, value, rows)
            if field.numpy.kind in "fc" and name != PRIORITY:  # a NaN priority means the highest
                check_finite(label, array)
            self.rows.extras[name][index] = array

    def take(self, outcome: Outcome) -> None:
        """Puts discounted returns and members' rewards into the rows of these outcomes, before `write`."""
        index = ALL if len(outcome.copies) == self.copies else outcome.copies
        if self._sums_returns:
            self._discounted[index] = self._discounted[index] * self.gamma + outcome.reward
            self.rows.extras[RETURN][index] = self._discounted[index]
        if self._shares_rewards:
            field, rewards = self.spec.extra_fields[MEMBER_REWARDS], outcome.member_rewards
            self.rows.extras[MEMBER_REWARDS][index] = self._as_rows(MEMBER_REWARDS, field, rewards, outcome)

    def _as_rows(self, label: str, field: Field, values: Any, outcome: Outcome) -> NDArray[Any]:
        try:
            return rows_of(label, field, values, len(outcome.copies))
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{self.agent}: {error}") from error

    def write(self, outcome: Outcome) -> None:
        """Writes the rows of these outcomes, each with the version of the weights that chose its action."""
        index, version = ALL if len(outcome.copies) == self.copies else outcome.copies, self._version
        self._waiting[index] = False
        reward = outcome.reward
        if reward.shape != outcome.copies.shape or reward.dtype.kind != "f":
            reward = self._as_rows("reward", Field(), reward, outcome)
        self.rows.reward[index] = reward
        if version is None:
            versions = self._versions[index]
            version = int(versions[0])
            if (versions != version).any():  # new weights came between the actions of these copies
                for version in np.unique(versions):
                    self.write(outcome.part(versions == version))
                return
        if version != self._written:
            self.rows.writer.policy_version = self._written = version
        cut = len(outcome.truncated.nonzero()[0])  # takes half the time of `np.count_nonzero`
        ended = cut or len(outcome.terminated.nonzero()[0])
        try:
            self.rows.append(
                index,
                outcome.terminated if ended else None,
                outcome.truncated if ended else None,
                outcome.final_obs if cut or (ended and self.stores_every_end) else None,
                None if index is ALL and len(self.lanes) == 1 else self._lanes[index],
            )
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{self.agent}: {error}") from error


class FirstPriorities:
    """Computes first priorities, as actors of Ape-X do (Horgan et al. 2018, arXiv:1803.00933).

    Writes each row once the values of the next observation are known or the episode has ended.
    """

    def __init__(self, recorder: Recorder, compute: FirstPriority) -> None:
        self._recorder, self._compute = recorder, compute
        self._waiting = np.zeros(recorder.copies, np.bool_)  # copies whose row waits for the next observation's values
        self._rewards = np.zeros(recorder.copies, np.float32)  # of the waiting rows
        self._values: dict[str, NDArray[Any]] = {}  # of the observations acted on

    def begin(self, copies: NDArray[np.int64]) -> None:
        """Writes the waiting rows of copies in which an episode begins, since their next values will never come."""
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
        """Writes the rows that end an episode; lets the others wait."""
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
        """Writes rows with priorities; `after` has the values [k] of the next observations, NaN if unknown."""
        before = {name: rows[outcome.copies] for name, rows in self._values.items()}
        self._recorder.rows.extras[PRIORITY][outcome.copies] = self._compute(before, outcome.reward, after)
        self._recorder.write(outcome)
