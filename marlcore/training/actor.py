"""The actor's loop: observe, write the outcomes, act; it waits for a learner only where a limiter holds the ratio.

It sees all its copies of the environment at once, as arrays: no line of this file runs once for each copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..checks import check_finite, rows_of
from ..envs import views_of
from ..errors import EnvironmentFailed
from ..interfaces import PRIORITY, Action, Outcome, Turn, VectorEnvironment
from ..spaces import Spaces, Values
from ..spec import TransitionSpec
from .policy import Player, PublishedPolicy

__all__ = ["Acting", "Actor", "Seat", "part_of"]

Report = Callable[[str, str, Sequence[float]], None]


class RowWriter(Protocol):
    """A destination of transitions; see transitions/vector_writer.py."""

    policy_version: int

    def add(
        self,
        obs: Any,
        action: Any,
        reward: Any,
        terminated: Any = None,
        truncated: Any = None,
        final_obs: Any = None,
        lanes: NDArray[np.int64] | None = None,
        **extras: Any,
    ) -> NDArray[np.int64]: ...

    def new_episode(self, lanes: NDArray[np.int64] | None = None) -> None: ...


class Acting(Protocol):
    """An agent in all copies, as an actor sees it."""

    def finish(self, outcome: Outcome) -> None: ...

    def act(self, turn: Turn) -> NDArray[Any]: ...


class Seat:
    """An agent in all copies, with its actions whose outcome is still to come.

    Args:
        agent: its name.
        player: chooses its actions.
        writer: appends its transitions, those of copy i to `lanes[i]`.
        spec: the fields of its rows.
        lanes: int64 [copies], or [parts, copies] where the replay has several parts.
        report: called with (agent, name, values) at the end of episodes.

    Attributes:
        parts: int64 [copies], the part of the replay for each copy's next episode.
    """

    def __init__(
        self,
        agent: str,
        player: Player,
        writer: RowWriter,
        spec: TransitionSpec,
        lanes: NDArray[np.int64],
        report: Report,
    ) -> None:
        self.writer = writer
        self._agent = agent
        self._player = player
        self._spec = spec
        self._lanes_of_parts = np.atleast_2d(lanes)
        self._lanes = self._lanes_of_parts[0].copy()  # of the present episodes
        self._report = report
        copies = len(self._lanes)
        self.parts = np.zeros(copies, np.int64)
        fields = {name: np.zeros((copies, *one.shape), one.dtype) for name, one in spec.obs_fields.items()}
        self._obs: Values = fields if isinstance(spec.obs, Mapping) else fields[""]
        self._action = np.zeros((copies, *spec.action.shape), spec.action.dtype)
        self._extras = {name: np.zeros((copies, *one.shape), one.dtype) for name, one in spec.extras.items()}
        self._waiting = np.zeros(copies, np.bool_)
        self._versions = np.zeros(copies, np.int64)
        self._returns, self._lengths = np.zeros(copies), np.zeros(copies, np.int64)

    def finish(self, outcome: Outcome) -> None:
        """Takes in the results of earlier actions: writes the transitions that they complete."""
        ended = outcome.terminated | outcome.truncated
        some_ended = bool(ended.any())
        self._write(outcome, some_ended)
        at = self._at(outcome.copies)
        self._waiting[at] = False
        self._player.told(outcome.reward, at)
        self._returns[at] += outcome.reward
        self._lengths[at] += 1
        if some_ended:
            self._report_episodes(outcome.copies[ended], outcome.infos)

    def _write(self, outcome: Outcome, some_ended: bool) -> None:
        versions = self._versions[self._at(outcome.copies)]
        if (versions == versions[0]).all():
            self._add(outcome, some_ended, int(versions[0]))
            return
        for version in np.unique(versions).tolist():  # weights came after the actions of some copies
            self._add(part_of(outcome, versions == version), some_ended, version)

    def _add(self, outcome: Outcome, some_ended: bool, version: int) -> None:
        self.writer.policy_version = version
        at = self._at(outcome.copies)
        try:
            self.writer.add(
                _taken(self._obs, at),
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

    def _report_episodes(self, copies: NDArray[np.int64], infos: Sequence[tuple[int, Mapping[str, float]]]) -> None:
        self._report(self._agent, "episode_return", self._returns[copies].tolist())
        self._report(self._agent, "episode_length", self._lengths[copies].tolist())
        for _, numbers in infos:
            for name, value in numbers.items():
                self._report(self._agent, f"info/{name}", [value])

    def act(self, turn: Turn) -> NDArray[Any]:
        """Chooses the actions of a turn, and remembers them for their outcome."""
        at = self._at(turn.copies)
        if turn.begins.any():
            self._begin(turn.copies[turn.begins])
        chosen = self._player.choose(turn.obs, at, turn.begins)
        self._settle(turn, chosen)
        self._put_extras(at, chosen, len(turn.copies))
        _put(self._obs, at, turn.obs)
        self._action[at] = chosen.action
        self._versions[at] = self._player.policy.version
        self._waiting[at] = True
        return chosen.action

    def _put_extras(self, at: Any, chosen: Action, rows: int) -> None:
        """Remembers the extras of `rows` actions; of those that are parts of the recurrent state, the state before.

        Raises: ValueError, TypeError: they are others than the spec's, or a float is not finite, except in the state.
        """
        left = self._extras.keys() - chosen.extras.keys()
        state = {name: part.numpy(force=True) for name, part in self._player.before.items() if name in left}
        if chosen.extras.keys() | state.keys() != self._extras.keys():
            raise ValueError(
                f"extras of the algorithm: expected {sorted(self._extras.keys() - state.keys())}, "
                f"as its transition says, got {sorted(chosen.extras)}"
            )
        for name, field in self._spec.extras.items():
            value, whose = (state[name], "algorithm's state") if name in state else (chosen.extras[name], "algorithm")
            array = rows_of(f"{name} of the {whose}", field, value, rows)
            if array.dtype.kind in "fc" and name not in state and name != PRIORITY:  # whose NaN means the highest
                check_finite(f"{name} of the {whose}", array)
            self._extras[name][at] = array

    def _settle(self, turn: Turn, chosen: Action) -> None:
        """Does with earlier transitions what had to wait for the values of this turn."""

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """Begins an episode in these copies; an action without an outcome is lost, and reported."""
        lost = copies[self._waiting[copies]]
        if len(lost):
            self.writer.new_episode(self._lanes[lost])
            self._report(self._agent, "transitions_lost", [len(lost)])
            self._waiting[lost] = False
        self._returns[copies], self._lengths[copies] = 0.0, 0
        self._lanes[copies] = self._lanes_of_parts[self.parts[copies], copies]

    def return_of(self, copy: int) -> float:
        """What the agent has earned in the last episode of a copy."""
        return float(self._returns[copy])

    def _at(self, copies: NDArray[np.int64]) -> Any:
        """An index of these copies' rows; all of them need no copy."""
        return slice(None) if len(copies) == len(self._lanes) else copies


class Actor:
    """Steps the copies of an environment and writes each agent's transitions.

    Args:
        env: the copies, whose first episodes have begun.
        policies: each with its first weights.
        seats: by agent: a `Seat`, or what stands in for one.
        sync_interval: rounds between pulls.

    Raises: EnvironmentFailed, from `step`: an environment raised, or returned values that the replay refuses.
    """

    def __init__(
        self,
        env: VectorEnvironment,
        policies: Mapping[str, PublishedPolicy],
        seats: Mapping[str, Acting],
        sync_interval: int,
    ) -> None:
        self._env = env
        self._views = views_of(env)
        self._policies = policies
        self._seats = seats
        self._sync_interval = sync_interval
        self._rounds = 0
        self._turns: list[Turn] = []

    @property
    def episodes(self) -> int:
        """The number of episodes ended."""
        return self._env.episodes

    def step(self) -> int:
        """Takes the actions that are due now; returns their number."""
        self.observe()
        return self.act()

    def observe(self) -> None:
        """Writes the outcomes of earlier actions; here it may wait for a learner."""
        outcomes, self._turns = self._env.observe()
        if self._views:
            for outcome in outcomes:
                self._views[outcome.agent].check_outcome(outcome)
            for turn in self._turns:
                self._views[turn.agent].check(turn.copies, turn.obs, acting=True)
        for outcome in outcomes:
            self._seats[outcome.agent].finish(outcome)

    def act(self) -> int:
        """Takes the actions that are due, by the newest weights if it is time for them; returns their number."""
        if self._rounds % self._sync_interval == 0 or any(policy.is_stale for policy in self._policies.values()):
            for policy in self._policies.values():
                policy.pull()
        self._rounds += 1
        taken = 0
        for turn in self._turns:
            action = self._seats[turn.agent].act(turn)
            try:
                self._env.act(turn, action)
            except EnvironmentFailed:
                check_actions(self._env.spaces[turn.agent], action)  # whose fault it is
                raise
            taken += len(turn.copies)
        return taken


def part_of(outcome: Outcome, which: NDArray[np.bool_]) -> Outcome:
    """The part of an outcome in some of its copies, bool [k]; without infos."""
    return Outcome(
        outcome.agent,
        outcome.copies[which],
        outcome.reward[which],
        outcome.terminated[which],
        outcome.truncated[which],
        None if outcome.final_obs is None else _taken(outcome.final_obs, which),
    )


def check_actions(spaces: Spaces, action: NDArray[Any]) -> None:
    """Raises ValueError: an action is outside the action space."""
    for one in spaces.shifted(action):
        if not spaces.action.contains(one):
            raise ValueError(f"action of the algorithm: expected one of {spaces.action}, got {one.tolist()}")


def _taken(values: Values, at: Any) -> Values:
    return {name: rows[at] for name, rows in values.items()} if isinstance(values, dict) else values[at]


def _put(values: Values, at: Any, new: Values) -> None:
    if isinstance(values, dict):
        assert isinstance(new, dict)
        for name, rows in values.items():
            rows[at] = new[name]
    else:
        values[at] = new
