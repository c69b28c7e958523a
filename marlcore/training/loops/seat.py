"""An agent in all copies of the environment, as columns: its last actions, whose outcomes are still to come."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...checks import check_finite
from ...errors import EnvironmentFailed
from ...interfaces import MEMBER_REWARDS, OF_OUTCOMES, PRIORITY, RETURN, Action, Outcome, Turn
from ...observations import each, put_rows, rows_at
from ...spec import TransitionSpec, rows_of
from ...transitions import VectorWriter
from .players import LATEST, Player, ScriptedPlayer
from .policy import PolicyPlayer

ByName = Mapping[str, NDArray[Any]]
FirstPriority = Callable[[ByName, NDArray[Any], ByName], NDArray[np.float32]]  # before, reward, after


class Ended(NamedTuple):
    """An agent's episodes that are over, of the policy that learns, also those without an action; arrays [k]."""

    agent: str
    copies: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    infos: Sequence[tuple[int, Mapping[str, float]]]  # copy, numbers by name


@dataclass
class Seat:
    """An agent in all copies.

    With first priorities, which Ape-X's actors compute (Horgan et al. 2018, arXiv:1803.00933), a transition is written
    when the values of its next observation are known, or its episode has ended.
    """

    agent: str
    player: PolicyPlayer  # of the policy that learns
    writer: VectorWriter
    spec: TransitionSpec
    lanes: NDArray[np.int64]  # [copies], or [parts, copies] where the replay has several parts
    first_priority: FirstPriority | None = None  # of transitions; None leaves them to the replay
    gamma: float = 1.0  # of the returns so far, which rows with an extra RETURN have
    stores_every_end: bool = False  # the final observations of terminated episodes too, for hindsight
    script: ScriptedPlayer | None = None  # acts in episodes that begin before `learned`
    learned: Callable[[], bool] = lambda: True  # whether the policy's learner has made an update

    def __post_init__(self) -> None:
        spec, self.lanes = self.spec, np.atleast_2d(self.lanes)
        self._lanes = self.lanes[0].copy()  # of the present episodes
        copies = len(self._lanes)
        # By copy: the replay's part for the episode's rows; the player: LATEST, whose rows are written, or another
        self.parts, self.numbers = np.zeros((2, copies), np.int64)
        self.opponents: Player | None = None  # None while all learn
        self._scripted = np.zeros(copies, np.bool_)  # where the script acts
        self._obs = each(lambda field: field.zeros(copies), spec.obs)
        self._action = spec.action.zeros(copies)
        self._extras = {name: field.zeros(copies) for name, field in spec.extras.items()}
        self._of_algorithm = {name: field for name, field in spec.extras.items() if name not in OF_OUTCOMES}
        self._discounted = np.zeros(copies)
        self._versions = np.zeros(copies, np.int64)  # of the weights that chose the actions
        self._version: int | None = 0  # that of all copies, if they are known to be one
        self._waiting = np.zeros(copies, np.bool_)  # for an outcome
        self.returns = np.zeros(copies)  # of the last finished episodes, whichever player acted
        self._returns = np.zeros(copies)  # so far
        self._lengths = np.zeros(copies, np.int64)
        self._infos: dict[int, Mapping[str, float]] = {}  # by copy, of the agent's end
        self._held = np.zeros(copies, np.bool_)  # until the values of the next observations come
        self._held_rewards = np.zeros(copies, np.float32)
        self._values: dict[str, NDArray[Any]] = {}  # of the observations acted on

    def pull_if_due(self, rounds: int) -> None:
        """Before a turn in the round after so many: takes newer weights, if it is time for them."""
        self.player.policy.pull_if_due(rounds)

    def record(self, outcome: Outcome) -> None:
        """Adds to the returns, and writes the transitions that the results of earlier actions complete."""
        self._returns[self._at(outcome.copies)] += outcome.reward
        self._infos |= {copy: told for copy, told in outcome.infos if self.numbers[copy] == LATEST}
        if not outcome.acted:
            return
        if self.opponents is not None:
            learns = self.numbers[outcome.copies] == LATEST
            if not learns.all():
                theirs = outcome.part(~learns)
                self.opponents.reward(theirs.reward, theirs.copies)
                outcome = outcome.part(learns)
            if not len(outcome.copies):
                return
        at = self._at(outcome.copies)
        if RETURN in self._extras:
            self._discounted[at] = self._discounted[at] * self.gamma + outcome.reward
            self._extras[RETURN][at] = self._discounted[at]
        if MEMBER_REWARDS in self._extras:
            self._extras[MEMBER_REWARDS][at] = self._rewards_of_members(outcome)
        ends = outcome.terminated | outcome.truncated
        if self.first_priority is None:
            self._write(outcome, bool(ends.any()))
        else:
            self._write_ended(outcome, ends)
        self._waiting[at] = False
        self.player.reward(outcome.reward, at)

    def end(self, copies: NDArray[np.int64]) -> list[Ended]:
        """Ends the returns of episodes that are over for all agents; gives those of the policy that learns, if any."""
        self.returns[copies], lengths = self._returns[copies], self._lengths[copies]
        self._returns[copies], self._lengths[copies] = 0.0, 0
        infos = [(copy, self._infos.pop(copy)) for copy in copies.tolist() if copy in self._infos]
        own = self.numbers[copies] == LATEST
        return [Ended(self.agent, copies[own], self.returns[copies[own]], lengths[own], infos)] if own.any() else []

    def _rewards_of_members(self, outcome: Outcome) -> NDArray[np.float32]:
        field, rewards = self.spec.extras[MEMBER_REWARDS], outcome.member_rewards
        try:
            return rows_of(MEMBER_REWARDS, field, rewards, len(outcome.copies))
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{self.agent}: {error}") from error

    def begin(self, copies: NDArray[np.int64]) -> int:
        """Begins an episode in these copies; returns how many actions are lost, since their outcomes never came."""
        held = copies[self._held[copies]]
        if len(held):
            self._write_held(held, dict.fromkeys(self._values, np.full(len(held), np.nan)))
        # The last episode may have ended for all before this agent's next turn, so that no row of it says so.
        self.writer.new_episode(self._lanes[copies])
        lost = copies[self._waiting[copies]]
        self._waiting[lost] = False
        self._discounted[copies] = 0.0
        if self.script is not None:
            self._scripted[copies] = not self.learned()
        self._lanes[copies] = self.lanes[self.parts[copies], copies]
        return len(lost)

    def act(self, turn: Turn) -> NDArray[Any]:
        """Chooses the actions of a turn, and remembers those of the policy that learns for their outcome."""
        if self.opponents is None or (learns := self.numbers[turn.copies] == LATEST).all():
            return self._act(turn)
        theirs = turn.part(~learns)
        others = self.opponents.choose(theirs.obs, theirs.copies, theirs.begins).action
        action = np.empty((len(learns), *others.shape[1:]), others.dtype)
        action[~learns] = others
        if learns.any():
            action[learns] = self._act(turn.part(learns))
        return action

    def _act(self, turn: Turn) -> NDArray[Any]:
        at = self._at(turn.copies)
        chosen = self._chosen(turn, at)
        if self.first_priority is not None:
            held = self._held[turn.copies]
            if held.any():
                self._write_held(turn.copies[held], {name: values[held] for name, values in chosen.values.items()})
            for name, values in chosen.values.items():
                self._values.setdefault(name, np.zeros(len(self._lanes)))[turn.copies] = values
        self._remember_extras(at, chosen, len(turn.copies))
        put_rows(self._obs, at, turn.obs)
        self._action[at] = chosen.action
        version = self.player.policy.version
        self._versions[at] = version
        self._version = version if isinstance(at, slice) else None
        self._waiting[at] = True
        self._lengths[at] += 1
        return chosen.action

    def _chosen(self, turn: Turn, at: Any) -> Action:
        """The actions of a turn, by the policy or the script; its rows have no extras, see `check_script`."""
        if self.script is None or not (scripted := self._scripted[turn.copies]).any():
            return self.player.choose(turn.obs, at, turn.begins)
        theirs = turn.part(scripted)
        of_script = self.script.choose(theirs.obs, theirs.copies, theirs.begins).action
        if scripted.all():
            return Action(of_script)
        own = turn.part(~scripted)
        action = np.empty((len(scripted), *of_script.shape[1:]), of_script.dtype)
        action[scripted], action[~scripted] = of_script, self.player.choose(own.obs, own.copies, own.begins).action
        return Action(action)

    def _remember_extras(self, at: Any, chosen: Action, rows: int) -> None:
        """Remembers the extras of `rows` actions; of those that are parts of the recurrent state, the state before."""
        missing = self._of_algorithm.keys() - chosen.extras.keys()
        state = {name: part.numpy(force=True) for name, part in self.player.before.items() if name in missing}
        if chosen.extras.keys() | state.keys() != self._of_algorithm.keys():
            raise ValueError(
                f"extras of the algorithm: expected {sorted(self._of_algorithm.keys() - state.keys())}, "
                f"as its transition says, got {sorted(chosen.extras)}"
            )
        for name, field in self._of_algorithm.items():
            value, owner = (state[name], "algorithm's state") if name in state else (chosen.extras[name], "algorithm")
            array = rows_of(f"{name} of the {owner}", field, value, rows)
            if array.dtype.kind in "fc" and name not in state and name != PRIORITY:  # whose NaN means the highest
                check_finite(f"{name} of the {owner}", array)
            self._extras[name][at] = array

    def _write_ended(self, outcome: Outcome, ended: NDArray[np.bool_]) -> None:
        """Writes the transitions that end an episode, with their first priorities, and holds the others."""
        held = outcome.copies[~ended]
        self._held[held], self._held_rewards[held] = True, outcome.reward[~ended]
        if ended.any():
            outcome = outcome.part(ended)
            after = dict.fromkeys(self._values, np.where(outcome.terminated, 0.0, np.nan))
            self._write_with_priorities(outcome, after)

    def _write_held(self, copies: NDArray[np.int64], after: ByName) -> None:
        """Writes transitions with the values [k] of their next observations; NaN where these never came."""
        never = np.zeros(len(copies), np.bool_)
        self._held[copies] = False
        self._write_with_priorities(Outcome(self.agent, copies, self._held_rewards[copies], never, never, None), after)

    def _write_with_priorities(self, outcome: Outcome, after: ByName) -> None:
        assert self.first_priority is not None
        before = {name: values[outcome.copies] for name, values in self._values.items()}
        self._extras[PRIORITY][outcome.copies] = self.first_priority(before, outcome.reward, after)
        self._write(outcome, bool((outcome.terminated | outcome.truncated).any()))

    def _write(self, outcome: Outcome, some_ended: bool) -> None:
        if self._version is not None:
            self._add(outcome, self._version, some_ended)
            return
        versions = self._versions[self._at(outcome.copies)]
        if (versions == versions[0]).all():
            self._add(outcome, int(versions[0]), some_ended)
            return
        for version in np.unique(versions).tolist():  # weights came after the actions of some copies
            self._add(outcome.part(versions == version), version, some_ended)

    def _add(self, outcome: Outcome, version: int, some_ended: bool) -> None:
        self.writer.policy_version = version
        at = self._at(outcome.copies)
        try:
            self.writer.add(
                rows_at(self._obs, at),
                self._action[at],
                outcome.reward,
                outcome.terminated if some_ended else None,
                outcome.truncated if some_ended else None,
                outcome.final_obs if some_ended and (self.stores_every_end or outcome.truncated.any()) else None,
                None if isinstance(at, slice) and len(self.lanes) == 1 else self._lanes[at],
                **{name: rows[at] for name, rows in self._extras.items()},
            )
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{self.agent}: {error}") from error

    def _at(self, copies: NDArray[np.int64]) -> Any:
        """An index of these copies' rows; all of them need no copy."""
        return slice(None) if len(copies) == len(self._lanes) else copies


def route(seats: Mapping[str, Seat], names: list[str], turn: Turn) -> None:
    """Assigns the episodes that begin to the replay's parts of these names, by `info["tag"]` at the first turn.

    Raises EnvironmentFailed: an episode of one of these seats, by agent, has no tag, or one without a part.
    """
    for copy in turn.copies[turn.begins].tolist() if turn.agent in seats else ():
        try:
            seats[turn.agent].parts[copy] = part_of_tag(turn.tags.get(copy), names)
        except ValueError as error:
            raise EnvironmentFailed(f"environment copy {copy}, {turn.agent}: {error}") from None


def part_of_tag(tag: Any, names: list[str]) -> int:
    """The number of the part of these names that a tag "anchor:weak" belongs to: of that name, else of "anchor".

    Without names, the replay has one part for all. Raises ValueError: the tag has no part.
    """
    if not names:
        return 0
    for name in (tag, tag.partition(":")[0]) if isinstance(tag, str) else ():
        if name in names:
            return names.index(name)
    raise ValueError(f"tag: expected one of {names}, as replay.mixture has them, got {tag!r}")
