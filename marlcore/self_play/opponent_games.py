"""Evaluates a policy in self-play: each opponent plays a fixed share of the games, on each side in turn."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..config import BOTH, Config
from ..interfaces import VectorEnvironment
from ..loops import LATEST, Candidate, Evaluation, GoesOn, Network, Player, PlayersByNumber, counted, play
from .opponents import Opponents
from .pool import members_of

POOL = "pool"


class Pairings(NamedTuple):
    """The opponent and the policy's side in each game of an evaluation, arrays [games]."""

    opponents: NDArray[np.int64]  # by number
    sides: NDArray[np.int64]  # the place of the agent that the policy plays
    groups: NDArray[np.int64]  # the opponent's group: each anchor is a group, and the pool is the last group


def paired(games: int, anchors: int, members: Sequence[int], sides: Sequence[int]) -> Pairings:
    """Pairs games in rounds: in each, the policy plays every anchor and the pool's next member once on each side."""
    meetings, turn = np.divmod(np.arange(games), len(sides))
    rounds, groups = np.divmod(meetings, anchors + bool(members))
    opponents = -1 - groups
    if members:
        of_pool = groups == anchors
        opponents[of_pool] = np.array(members)[rounds[of_pool] % len(members)]
    return Pairings(opponents, np.array(sides)[turn], groups)


def spread(members: Sequence[int], most: int) -> list[int]:
    """Chooses at most `most` members of the pool: the newest, the oldest, and evenly spaced ones between them."""
    places = np.linspace(len(members) - 1, 0, min(most, len(members))).round().astype(np.int64)
    return [members[place] for place in places.tolist()]


@dataclass
class OpponentGames:
    """Plays the newest weights, and the best weights so far, in the same games against the anchors and the pool.

    The best weights play again, since returns against a changing pool cannot be compared over time. The newest weights
    become the best if they have a higher mean return; in this mean, each anchor and the whole pool have equal weight.
    """

    env: VectorEnvironment
    candidate: Candidate  # the policy that learns
    config: Config
    opponents: Opponents  # whose generator is seeded anew for each policy's games
    seed: Callable[[int], int]  # independent for each step count
    report: Callable[[str, str, float, int], None]  # agent or policy, name, value, step

    def __post_init__(self) -> None:
        self._best = copy.deepcopy(self.candidate.acting.network)
        self._names = [*self.config.self_play.names, POOL]

    def play(self, now: int, goes_on: GoesOn) -> bool:
        """See `Games`. Also returns False if there are no anchors and the pool has no member that can play."""
        pairings = self._pairings()
        if pairings is None:
            return False
        seed, candidate = self.seed(now), self.candidate
        outcome = self._play(candidate.acting.network, pairings, seed, goes_on)
        if outcome is None:
            return False
        best, weights = None, candidate.kept.best_weights()
        if weights is not None:
            self._best.load({**candidate.acting.network.weights, **weights})
            of_best = self._play(self._best, pairings, seed, goes_on)
            if of_best is None:
                return False
            best = _mean(self._by_opponent(self._of_policy(of_best.returns, pairings), pairings))
        self._report(outcome, pairings, best)
        return True

    def _pairings(self) -> Pairings | None:
        """Returns an evaluation's pairings; None if no opponent can play."""
        settings, games = self.config.self_play, self.config.evaluation.episodes
        agents = list(self.env.agents)
        sides = range(len(agents)) if settings.side == BOTH else [agents.index(settings.side)]
        meetings = max(-(-games // len(sides)) // len(self._names), 1)  # with the pool
        chosen = spread(members_of(self.opponents.pools), meetings)
        members = [number for number in chosen if self.opponents.load(number)]
        self.opponents.keep(members)
        if not members and not settings.anchors:
            return None  # the learner has just replaced all of them
        return paired(games, len(settings.anchors), members, sides)

    def _play(self, network: Network, pairings: Pairings, seed: int, goes_on: GoesOn) -> Evaluation | None:
        self.opponents.generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        policy = replace(self.candidate.acting, network=network, generator=np.random.default_rng(seed))

        def player(agent: str, number: int) -> Player:
            return policy if number == LATEST else self.opponents.player(agent, number)

        games = len(pairings.sides)
        counts = counted(games, self.env.copies)
        first = np.cumsum(counts) - counts  # first game of each copy

        def numbers_in(copies: NDArray[np.int64], side: int) -> NDArray[np.int64]:
            """Returns the number of each copy's player on this side; games beyond `games` repeat the last pairing."""
            present = np.minimum(first[copies] + self.env.ended[copies], games - 1)
            return np.where(pairings.sides[present] == side, LATEST, pairings.opponents[present])

        players = {
            agent: PlayersByNumber(partial(numbers_in, side=side), partial(player, agent))
            for side, agent in enumerate(self.env.agents)
        }
        return play(self.env, players, games, seed, goes_on)

    def _by_opponent(self, values: NDArray[Any], pairings: Pairings) -> dict[str, float]:
        """Averages the policy's values [games] over the games against each anchor and against the pool, by name."""
        return {
            name: float(values[pairings.groups == group].mean())
            for group, name in enumerate(self._names)
            if (pairings.groups == group).any()
        }

    def _of_policy(self, by_agent: Mapping[str, NDArray[Any]], pairings: Pairings) -> NDArray[Any]:
        """Returns the policy's values, [games]: in each game, the value of the agent that the policy played."""
        of_sides = np.stack([by_agent[agent] for agent in self.env.agents])
        return of_sides[pairings.sides, np.arange(len(pairings.sides))]

    def _report(self, outcome: Evaluation, pairings: Pairings, best: float | None) -> None:
        by_game, step = self._of_policy(outcome.returns, pairings), self.candidate.step
        wins = self._by_opponent((self._of_policy(outcome.results, pairings) + 1) / 2, pairings)
        returns = self._by_opponent(by_game, pairings)
        self.candidate.keep(_mean(returns), best)
        values = {"eval_return": _mean(returns), "eval_distinct": float(outcome.distinct)}
        if best is not None:
            values["eval_return_of_best"] = best
        values |= {f"eval_return/{name}": value for name, value in returns.items()}
        values |= {"eval_win_rate": _mean(wins)} | {f"eval_win_rate/{name}": rate for name, rate in wins.items()}
        for name, value in values.items():
            self.report(self.candidate.policy.name, name, value, step)
        for side, agent in enumerate(self.env.agents if not self.config.self_play.roles else ()):
            games = pairings.sides == side
            if games.any():
                self.report(agent, "eval_return", float(by_game[games].mean()), step)
                self.report(agent, "eval_length", float(outcome.lengths[agent][games].mean()), step)


def _mean(returns: dict[str, float]) -> float:
    return sum(returns.values()) / len(returns)
