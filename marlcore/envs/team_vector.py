"""Teams in a vector environment: combines the members' arrays without loops over copies."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces as gym
from numpy.typing import NDArray

from ..checks import brief
from ..errors import EnvironmentFailed
from ..interfaces import Outcome, Turn, VectorEnvironment
from ..observations import Values, by_name
from ..spaces import ALIVE, MASK, Spaces
from ..spec import Field, rows_of
from .agent_view import AgentView
from .at_once import AtOnce, flat, index_of, joined
from .members import Arrays, Team

REWARD = Field((), "float64")


class TeamVector(AtOnce):
    """A VectorEnvironment in which each of `teams` is one agent, as in `TeamEnvironment`.

    One difference: a member's reward for a step in which it does not act counts in the return, but no row stores it.

    Raises: ValueError: `teams` names no agents, or the members' actions cannot be joined.
    """

    def __init__(self, env: VectorEnvironment, teams: Mapping[str, Sequence[str]]) -> None:
        super().__init__(env)
        for member in (member for members in teams.values() for member in members):
            if member not in env.spaces:
                raise ValueError(f"teams: expected agents among {brief(list(env.agents))}, got {brief(member)}")
        self._team_of = {member: name for name, members in teams.items() for member in members}
        self.agents = tuple(dict.fromkeys(self._team_of.get(agent, agent) for agent in env.agents))
        self._teams = {
            name: _Columns(name, Team(name, {member: env.spaces[member] for member in members}), env.copies)
            for name, members in teams.items()
        }
        spaces = {name: team.spaces for name, team in self._teams.items()}
        self.spaces = {agent: spaces.get(agent) or env.spaces[agent] for agent in self.agents}

    def observe(self) -> tuple[list[Outcome], list[Turn]]:
        seen, asked, over = self.advance()
        outcomes: list[Outcome] = []
        turns: list[Turn] = []
        for agent in self.agents:
            of_agent = [outcome for outcome in seen if self._team_of.get(outcome.agent, outcome.agent) == agent]
            due = [turn for turn in asked if self._team_of.get(turn.agent, turn.agent) == agent]
            if agent in self._teams:
                of_agent, due = self._teams[agent].join(of_agent, due, over)
            outcomes += of_agent
            turns += due
        return outcomes, turns

    def act(self, turn: Turn, action: NDArray[Any]) -> None:
        if turn.agent not in self._teams:
            self._env.act(turn, action)
            return
        for member_turn, chosen in self._teams[turn.agent].split(turn, action):
            self._env.act(member_turn, chosen)


class _Results(NamedTuple):
    """The results of the members' actions, each [members, copies]."""

    earned: NDArray[np.float64]
    acted: NDArray[np.bool_]
    ended: NDArray[np.bool_]
    cut: NDArray[np.bool_]  # ended by a truncation

    @classmethod
    def of(cls, outcomes: Sequence[Outcome], numbers: Mapping[str, int], copies: int) -> "_Results":
        results = cls(np.zeros((len(numbers), copies)), *np.zeros((3, len(numbers), copies), bool))
        for outcome in outcomes:
            at, label = (numbers[outcome.agent], index_of(outcome.copies, copies)), f"reward of {outcome.agent}"
            results.earned[at] = rows_of(label, REWARD, outcome.reward, len(outcome.copies))
            results.acted[at] = True
            results.ended[at] = outcome.terminated | outcome.truncated
            results.cut[at] = outcome.truncated & ~outcome.terminated
        return results


class _Columns:
    """One team in all copies."""

    def __init__(self, name: str, team: Team, copies: int) -> None:
        self._name, self._team, self._copies = name, team, copies
        self.spaces: Spaces = AgentView.of(name, team.observation_space, team.action_space).spaces
        self._everywhere = np.arange(copies)

    def join(
        self, outcomes: list[Outcome], turns: list[Turn], over: NDArray[np.bool_]
    ) -> tuple[list[Outcome], list[Turn]]:
        """Joins the members' outcomes and turns into the team's outcomes and turn.

        Raises EnvironmentFailed if a member's observation or reward does not fit.
        """
        numbers = self._team.numbers
        acted = sorted((outcome for outcome in outcomes if outcome.acted), key=lambda outcome: numbers[outcome.agent])
        self._turns = sorted(turns, key=lambda turn: numbers[turn.agent])
        due = np.zeros(self._copies, bool)  # where a member acts next
        for turn in turns:
            due[index_of(turn.copies, self._copies)] = True
        try:
            results = _Results.of(acted, numbers, self._copies)
            ends = results.ended.any(0) & (over | ~due)
            cut = results.cut & ends
            now, last = joined(self._team.empty, partial(self._place, cut), self._turns, acted, over)
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{self._name}: {error}") from error
        joint = [self._outcome(acted, results, ends, cut.any(0), last)] if acted else []
        joint += [outcome._replace(agent=self._name) for outcome in outcomes if not outcome.acted]
        return joint, [self._turn(due, over | ~results.acted.any(0), now)] if turns else []

    def _turn(self, due: NDArray[np.bool_], begins: NDArray[np.bool_], now: Arrays) -> Turn:
        copies, index = self._rows(due)
        tags = {copy: tag for turn in reversed(self._turns) for copy, tag in turn.tags.items()}
        return Turn(self._name, copies, self._values(now, index), begins[index], tags)

    def _outcome(
        self, outcomes: Sequence[Outcome], results: _Results, ends: NDArray[np.bool_], cut: Any, last: Arrays | None
    ) -> Outcome:
        copies, index = self._rows(results.acted.any(0))
        infos = {copy: info for outcome in reversed(outcomes) for copy, info in outcome.infos if ends[copy]}
        return Outcome(
            self._name,
            copies,
            results.earned.sum(axis=0)[index],
            (ends & ~cut)[index],
            cut[index],
            None if last is None else self._values(last, index),
            [*infos.items()],
            results.earned.T[index],
        )

    def _rows(self, which: Any) -> tuple[NDArray[np.int64], Any]:
        """Returns the copies where `which`, bool [copies], is True, and their index in arrays of all copies."""
        return (self._everywhere, slice(None)) if which.all() else (which.nonzero()[0],) * 2

    def _values(self, arrays: Arrays, index: Any) -> Arrays:
        """Returns the rows of the team's observations in the form of its spaces."""
        values = {name: arrays[name][index] for name in by_name(self.spaces.obs)}
        return {**values, MASK: values[MASK].view(bool)} if self._team.masked else values

    def _place(
        self, cut: NDArray[np.bool_], arrays: Arrays, member: str, copies: NDArray[np.int64], seen: Values, final: bool
    ) -> None:
        """Writes a member's observations [k, ...].

        In final observations, "alive" is 1 only where `cut`: where the member was truncated together with its team.
        """
        team, rows = self._team, len(copies)
        spaces, number, parts = team.members[member], team.numbers[member], by_name(seen)
        alive = cut[number, copies] if final else np.ones(rows, bool)
        alone = parts[spaces.parts[0].name] if isinstance(spaces.observation, gym.Box) else flat(spaces, seen)
        at = index_of(copies, self._copies)
        team.place(arrays, member, at, rows_of(f"obs of {member}", team.fields[member], alone, rows))
        arrays[ALIVE][at, number] = alive
        if team.masked:
            team.allow(arrays, member, copies[alive], parts[MASK][alive] if spaces.masked else True)

    def split(self, turn: Turn, action: NDArray[Any]) -> Iterator[tuple[Turn, NDArray[Any]]]:
        """Yields each member's turn with the member's actions; `turn` and `action` are the team's."""
        chosen = self._team.actions(rows_of("action", self.spaces.action_field, action, len(turn.copies)))
        for member_turn in self._turns:
            rows = np.searchsorted(turn.copies, member_turn.copies)
            yield member_turn, chosen[member_turn.agent][index_of(rows, len(turn.copies))]
