"""Assigns players to the agents in an actor's copies of the environment, and reports the games' results."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..config import BOTH, SelfPlayConfig
from ..interfaces import Turn, VectorEnvironment
from ..loops import LATEST, WINNER, Collector, Ended, PlayersByNumber, compared, part_of_tag
from ..processes import Reporter, Telemetry
from .opponents import Opponents, name_of


@dataclass(frozen=True)
class Contender:
    """A learning policy in an actor: its collectors, and the opponents that it may meet."""

    collectors: Mapping[str, Collector]  # by agent; matches fill the collectors' columns
    published: Callable[[], Mapping[str, Any]]  # extras of the weights: the opponents' numbers and odds
    opponents: Opponents
    report: Callable[[int, int], None]  # opponent and result of a game: 1 won, 0 drawn, -1 lost

    def drawn(self, generator: np.random.Generator) -> int:
        """Draws an opponent by the published odds; returns its number. Draws again if the pool has replaced it."""
        published = self.published()
        numbers, odds = published["opponents"], published["odds"].copy()
        while odds.any():
            i = int(generator.choice(len(odds), p=odds / odds.sum()))
            number = int(numbers[i])
            if number == LATEST or self.opponents.load(number):
                return number
            odds[i] = 0.0
        return LATEST


@dataclass
class Matches:
    """Assigns each copy's players: the learning policy plays one agent, and opponents play the other agents.

    In a league, the policies take turns at learning. Opponents are drawn for a block of episodes, and play until the
    block ends, even if the pool replaces them.
    """

    config: SelfPlayConfig
    contenders: Sequence[Contender]
    learning: NDArray[np.int64]  # [copies], written here: the index of the policy that learns
    env: VectorEnvironment  # whose `ended` counts episodes, and may be a new array each time
    parts: list[str]  # the names of the replay's parts
    generator: np.random.Generator  # draws opponents

    def __post_init__(self) -> None:
        copies, self._agents = len(self.env.ended), list(self.contenders[0].collectors)
        # [copies, agents - 1]: opponents' numbers, beginning with the agent after the learning policy's agent
        self.present = np.zeros((copies, len(self._agents) - 1), np.int64)
        self._episodes = np.full(copies, -1)  # the episode for which each copy's match was drawn
        self.learning[:] = np.arange(copies) % len(self.contenders)
        # [policies, copies]: the index of the agent that the policy played in its last match in the copy
        self._sides = np.tile(np.arange(copies) % len(self._agents), (len(self.contenders), 1))
        self._left = np.zeros(copies, np.int64)  # episodes of each copy's block that have not begun
        for contender in self.contenders:
            for agent, collector in contender.collectors.items():
                player = partial(contender.opponents.player, agent)
                collector.opponents = PlayersByNumber(collector.numbers.__getitem__, player)

    def begin(self, turn: Turn) -> None:
        """Draws matches for the episodes that begin with this turn, and assigns a player to each agent."""
        copies = turn.copies[turn.begins]
        copies = copies[self._episodes[copies] != self.env.ended[copies]]
        if not len(copies):
            return
        self._episodes[copies] = self.env.ended[copies]
        for copy in copies.tolist():
            if self._left[copy] == 0:
                self._left[copy] = self.config.block
                self.learning[copy] = (self.learning[copy] + 1) % len(self.contenders)
                self.present[copy] = [self._contender(copy).drawn(self.generator) for _ in self._agents[1:]]
            self._left[copy] -= 1
            self._assign(copy)
        for place, contender in enumerate(self.contenders):
            present = self.present[self.learning == place].ravel()
            contender.opponents.keep({*present.tolist(), *contender.published()["opponents"].tolist()})

    def _contender(self, copy: int) -> Contender:
        return self.contenders[int(self.learning[copy])]

    def _assign(self, copy: int) -> None:
        side, contender, sides = self.config.side, self._contender(copy), self._sides[self.learning[copy]]
        sides[copy] = (sides[copy] + 1) % len(self._agents) if side == BOTH else self._agents.index(side)
        rivals = [policy.name for policy in contender.opponents.policies]
        part = part_of_tag(name_of(int(self.present[copy, 0]), self.config.names, rivals), self.parts)
        for agent, number in self._numbers(copy).items():
            collector = contender.collectors[agent]
            collector.recorder.parts[copy], collector.numbers[copy] = part, number

    def _numbers(self, copy: int) -> dict[str, int]:
        """Returns the number of each agent's player; LATEST is the learning policy."""
        turned = np.roll([LATEST, *self.present[copy].tolist()], self._sides[self.learning[copy], copy])
        return dict(zip(self._agents, turned.tolist(), strict=True))

    def report(self, ended: Ended) -> None:
        """Reports the games that a learning agent has finished: a result against each opponent."""
        infos, played = dict(ended.infos), self._episodes[ended.copies] == self.env.ended[ended.copies] - 1
        for copy in ended.copies[played].tolist():
            contender, winner = self._contender(copy), infos.get(copy, {}).get(WINNER)
            for other, number in self._numbers(copy).items():
                if number != LATEST:
                    returns = (contender.collectors[agent].returns[copy] for agent in (ended.agent, other))
                    undecided = winner is None or math.isnan(winner)
                    contender.report(number, int(compared(*returns) if undecided else np.sign(winner or 0.0)))


def report_result(lane: Reporter, opponent: int, result: int) -> None:
    """Writes a game's result into an actor's lane of results, which `results_in` reads."""
    lane.report_each(time.monotonic(), 0, str(opponent), "result", [result])


def results_in(lanes: Telemetry) -> list[tuple[int, int]]:
    """Returns (opponent, result) of each game reported since the last call, in order of time."""
    return [(int(game.agent), int(game.value)) for game in lanes.tail()]
