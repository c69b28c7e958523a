"""Collects one agent's experience in all copies of the environment: acts, sums returns, and writes rows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import EnvironmentFailed
from ..interfaces import Outcome, Turn
from .acting_policy import ActingPolicy, FollowedWeights
from .players import LATEST, Player, ScriptedAtFirst, joined
from .recorder import ALL, FirstPriorities, Recorder


class Ended(NamedTuple):
    """Finished episodes in which the learning policy played the agent; arrays [k]."""

    agent: str
    copies: NDArray[np.int64]
    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    infos: Sequence[tuple[int, Mapping[str, float]]]  # copy, numbers by name


@dataclass
class Collector:
    """Plays one agent in all copies for one learning policy: chooses actions, sums returns, and writes rows."""

    player: ActingPolicy | ScriptedAtFirst  # of the learning policy
    weights: FollowedWeights  # of the learning policy
    recorder: Recorder
    priorities: FirstPriorities | None = None  # None leaves first priorities to the replay

    def __post_init__(self) -> None:
        self.copies = copies = self.recorder.copies
        self.followed = [self.weights]
        self.numbers = np.zeros(copies, np.int64)  # each copy's player; only the rows of LATEST are written
        self.opponents: Player | None = None  # None while the learning policy plays in all copies
        # By copy: the return of the last finished episode, and of the present one so far, of any player
        self.returns, self._returns = np.zeros((2, copies))
        self._lengths = np.zeros(copies, np.int64)  # without the rounds in which all copies acted
        self._rounds = 0  # rounds in which all copies acted
        self._infos: dict[int, Mapping[str, float]] = {}  # by copy, when the agent's episode ended

    def record(self, outcome: Outcome) -> None:
        """Adds rewards to the returns, and writes the transitions that these outcomes complete."""
        rows = ALL if len(outcome.copies) == self.copies else outcome.copies
        self._returns[rows] += outcome.reward
        if outcome.infos:
            self._infos |= {copy: numbers for copy, numbers in outcome.infos if self.numbers[copy] == LATEST}
        if not outcome.acted:
            return
        if self.opponents is not None and not (learns := self.numbers[outcome.copies] == LATEST).all():
            self.opponents.reward(outcome.reward[~learns], outcome.copies[~learns])
            outcome = outcome.part(learns)
            rows = outcome.copies
            if not len(rows):
                return
        if self.recorder.takes_outcomes:
            self.recorder.take(outcome)
        (self.priorities or self.recorder).write(outcome)
        if self.player.state_before:
            self.player.reward(outcome.reward, rows)

    def end(self, copies: NDArray[np.int64]) -> list[Ended]:
        """Resets the returns of these copies, whose episodes have ended; returns the learning policy's episodes."""
        self.returns[copies], lengths = self._returns[copies], self._lengths[copies] + self._rounds
        self._returns[copies], self._lengths[copies] = 0.0, -self._rounds
        infos = [(copy, self._infos.pop(copy)) for copy in copies.tolist() if copy in self._infos]
        if self.opponents is not None:
            learns = self.numbers[copies] == LATEST
            copies, lengths = copies[learns], lengths[learns]
        return [Ended(self.recorder.agent, copies, self.returns[copies], lengths, infos)] if len(copies) else []

    def begin(self, copies: NDArray[np.int64]) -> int:
        """Begins an episode in these copies; returns the number of lost actions, whose outcomes never came."""
        if self.priorities is not None:
            self.priorities.begin(copies)
        return self.recorder.begin(copies)

    def act(self, turn: Turn) -> NDArray[Any]:
        """Chooses a turn's actions, and remembers the learning policy's actions until their outcomes come."""
        opponents = self.opponents
        if opponents is not None and not (learns := self.numbers[turn.copies] == LATEST).all():

            def act(learning: int, rows: NDArray[np.bool_]) -> NDArray[Any]:
                part = turn.part(rows)
                return self.act(part) if learning else opponents.choose(part.obs, part.copies, part.begins).action

            return joined(learns, act)
        rows = ALL if len(turn.copies) == self.copies else turn.copies
        chosen = self.player.choose(turn.obs, rows, turn.begins)
        if self.priorities is not None:
            self.priorities.remember(turn.copies, chosen.values)
        self.recorder.remember(turn, chosen, self.player.state_before, self.weights.version)
        if rows is ALL:
            self._rounds += 1
        else:
            self._lengths[rows] += 1
        return chosen.action


@dataclass
class LeagueCollector:
    """An agent's collectors in a league, one for each policy; in each episode, one policy learns."""

    collectors: Sequence[Collector]
    learning: NDArray[np.int64]  # [copies]: the index of the collector whose policy learns in the episode

    def __post_init__(self) -> None:
        # All policies' weights: a policy that does not learn in an episode may be an opponent in it
        self.followed = [weights for collector in self.collectors for weights in collector.followed]

    def record(self, outcome: Outcome) -> None:
        for collector, rows in self._split(outcome.copies):
            collector.record(outcome.part(rows))

    def end(self, copies: NDArray[np.int64]) -> list[Ended]:
        return [ended for collector, rows in self._split(copies) for ended in collector.end(copies[rows])]

    def begin(self, copies: NDArray[np.int64]) -> int:
        """Begins an episode in the collectors of all policies; returns the number of lost actions in all of them."""
        return sum(collector.begin(copies) for collector in self.collectors)

    def act(self, turn: Turn) -> NDArray[Any]:
        return joined(self.learning[turn.copies], lambda place, rows: self.collectors[place].act(turn.part(rows)))

    def _split(self, copies: NDArray[np.int64]) -> Iterator[tuple[Collector, NDArray[np.bool_]]]:
        """Yields each collector whose policy learns in some of these copies, with the mask [k] of those copies."""
        learning = self.learning[copies]
        return ((self.collectors[place], learning == place) for place in np.unique(learning).tolist())


def route(collectors: Mapping[str, Collector], names: list[str], turn: Turn) -> None:
    """Assigns each new episode to a part of the replay, by the episode's first `info["tag"]`; see `part_of_tag`.

    Raises EnvironmentFailed if an episode of one of these agents has no tag, or if no part has the tag's name.
    """
    for copy in turn.copies[turn.begins].tolist() if turn.agent in collectors else ():
        try:
            collectors[turn.agent].recorder.parts[copy] = part_of_tag(turn.tags.get(copy), names)
        except ValueError as error:
            raise EnvironmentFailed(f"environment copy {copy}, {turn.agent}: {error}") from None


def part_of_tag(tag: Any, names: list[str]) -> int:
    """Returns the index in `names` of a tag such as "anchor:weak" or, if it is not in `names`, of "anchor".

    If `names` is empty, the replay has one part, and the index is 0. Raises ValueError if `names` lacks both.
    """
    if not names:
        return 0
    for name in (tag, tag.partition(":")[0]) if isinstance(tag, str) else ():
        if name in names:
            return names.index(name)
    raise ValueError(f"tag: expected one of replay.mixture's names {names}, got {tag!r}")
