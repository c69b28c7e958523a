"""The evaluation of a policy in self-play: games against its opponents, in fixed shares, on both sides in turn."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...interfaces import Action, VectorEnvironment
from ...observations import Values
from ..config import BOTH, Config, SelfPlayConfig
from ..loops import (
    ActingModel,
    Candidate,
    Evaluation,
    Player,
    Report,
    choose_by_number,
    counted,
    play,
    reward_by_number,
)
from .odds import LATEST
from .players import FrozenPlayers

POOL = "pool"


def fewest_games(config: SelfPlayConfig) -> int:
    """Games of an evaluation that meets each opponent once on each side."""
    return (1 + len(config.anchors)) * (2 if config.side == BOTH else 1)


class Pairings(NamedTuple):
    """The opponent and the policy's side in each game of an evaluation.

    Attributes:
        opponents: int64 [games], by number.
        sides: int64 [games], the place of the agent that the policy plays.
        groups: int64 [games], the place of an anchor; the pool comes last.
    """

    opponents: NDArray[np.int64]
    sides: NDArray[np.int64]
    groups: NDArray[np.int64]


def paired(games: int, anchors: int, members: Sequence[int], sides: Sequence[int]) -> Pairings:
    """Games on each side against each opponent in turn; the pool's members share one turn, in their order."""
    meetings, turn = np.divmod(np.arange(games), len(sides))
    rounds, groups = np.divmod(meetings, anchors + bool(members))
    opponents = -1 - groups
    if members:
        of_pool = groups == anchors
        opponents[of_pool] = np.array(members)[rounds[of_pool] % len(members)]
    return Pairings(opponents, np.array(sides)[turn], groups)


def spread(held: Sequence[int], most: int) -> list[int]:
    """At most so many members of the pool: the newest, the oldest, and some evenly spaced between them."""
    places = np.linspace(len(held) - 1, 0, min(most, len(held))).round().astype(np.int64)
    return [held[place] for place in places.tolist()]


class OpponentGames:
    """Games of the newest weights against the anchors and the pool; the best weights so far play the same ones.

    Returns against a pool that changes cannot be compared over time, so the best weights are measured anew in each
    evaluation, against the same opponents and under the same seed. They are replaced if the newest ones have a higher
    return: the mean over all anchors and the pool, of which each counts alike.

    Args:
        env: the copies in which they are played.
        candidate: the policy that learns.
        config: the settings.
        anchors: players, in the order of the settings.
        frozen: players of the pool.
        held: the numbers of the pool's members, oldest first.
        generator: of the opponents' draws; seeded anew for each policy's games.
        seed: an independent seed for each step count.
        policy: its name.
        report: called with (agent or policy, name, value, step).
    """

    def __init__(
        self,
        env: VectorEnvironment,
        candidate: Candidate,
        config: Config,
        anchors: Sequence[Player],
        frozen: FrozenPlayers,
        held: Callable[[], range],
        generator: np.random.Generator,
        seed: Callable[[int], int],
        policy: str,
        report: Report,
    ) -> None:
        self._env = env
        self._candidate = candidate
        self._config = config
        self._anchors = anchors
        self._frozen = frozen
        self._held = held
        self._generator = generator
        self._seed = seed
        self._policy = policy
        self._report = report
        self._best = copy.deepcopy(candidate.model)
        self._names = [*config.self_play.names, POOL]

    def play(self, now: int, goes_on: Callable[[], bool]) -> bool:
        """See `Games`. It does nothing either if there is neither an anchor nor a member of the pool that can play."""
        pairings = self._pairings()
        if pairings is None:
            return False
        seed, candidate = self._seed(now), self._candidate
        outcome = self._play(candidate.model, pairings, seed, goes_on)
        if outcome is None:
            return False
        best, weights = None, candidate.kept.best_weights()
        if weights is not None:
            self._best.load_state_dict(weights)
            of_best = self._play(self._best, pairings, seed, goes_on)
            if of_best is None:
                return False
            best = _mean(self._by_opponent(self._returns(of_best, pairings), pairings))
        self._take(outcome, pairings, best)
        return True

    def _pairings(self) -> Pairings | None:
        """None if no opponent can play now."""
        settings, games = self._config.self_play, self._config.evaluation.episodes
        sides = range(2) if settings.side == BOTH else [list(self._env.agents).index(settings.side)]
        meetings = max(-(-games // len(sides)) // len(self._names), 1)  # with the pool
        members = [number for number in spread(self._held(), meetings) if self._frozen.has(number)]
        self._frozen.keep(members)
        if not members and not self._anchors:
            return None  # the learner has just replaced them
        return paired(games, len(self._anchors), members, sides)

    def _play(
        self, model: ActingModel, pairings: Pairings, seed: int, goes_on: Callable[[], bool]
    ) -> Evaluation | None:
        self._generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        policy = self._candidate.player(self._env.copies, self._config.replay.pad, seed, model)

        def player(number: int) -> Player:
            if number == LATEST:
                return policy
            return self._frozen[number] if number > LATEST else self._anchors[-number - 1]

        players = {agent: _Side(side, pairings, self._env, player) for side, agent in enumerate(self._env.agents)}
        return play(self._env, players, len(pairings.sides), seed, goes_on)

    def _by_opponent(self, returns: NDArray[np.float64], pairings: Pairings) -> dict[str, float]:
        """The policy's mean return against each anchor, and against the pool, for its return in each game."""
        return {
            name: float(returns[pairings.groups == group].mean())
            for group, name in enumerate(self._names)
            if (pairings.groups == group).any()
        }

    def _returns(self, outcome: Evaluation, pairings: Pairings) -> NDArray[np.float64]:
        """The policy's return in each game."""
        of_sides = np.stack([outcome.returns[agent] for agent in self._env.agents])
        returns: NDArray[np.float64] = of_sides[pairings.sides, np.arange(len(pairings.sides))]
        return returns

    def _take(self, outcome: Evaluation, pairings: Pairings, best: float | None) -> None:
        """Saves the weights, and reports the outcome."""
        by_game, step = self._returns(outcome, pairings), self._candidate.step
        returns = self._by_opponent(by_game, pairings)
        self._candidate.keep(_mean(returns), best)
        values = {"eval_return": _mean(returns), "eval_distinct": float(outcome.distinct)}
        if best is not None:
            values["eval_return_of_best"] = best
        values |= {f"eval_return/{name}": value for name, value in returns.items()}
        for name, value in values.items():
            self._report(self._policy, name, value, step)
        for side, agent in enumerate(self._env.agents):
            games = pairings.sides == side
            if games.any():
                self._report(agent, "eval_return", float(by_game[games].mean()), step)
                self._report(agent, "eval_length", float(outcome.lengths[agent][games].mean()), step)


class _Side:
    """An agent in all copies: the policy under test acts in its games on this side, its opponents in the others."""

    def __init__(self, side: int, pairings: Pairings, env: VectorEnvironment, player: Callable[[int], Player]) -> None:
        numbers = np.where(pairings.sides == side, LATEST, pairings.opponents)
        counts = counted(len(numbers), env.copies)
        self._numbers = numbers
        self._first = np.cumsum(counts) - counts  # game of each copy
        self._copies = np.arange(env.copies)
        self._env = env
        self._player = player

    def choose(self, obs: Values, at: Any, begins: NDArray[np.bool_]) -> Action:
        copies = self._copies[at]
        return Action(choose_by_number(self._present(copies), self._player, obs, copies, begins))

    def reward(self, reward: NDArray[Any], at: Any) -> None:
        copies = self._copies[at]
        reward_by_number(self._present(copies), self._player, reward, copies)

    def _present(self, copies: NDArray[np.int64]) -> NDArray[np.int64]:
        """The numbers of the players in the present games; those after the last one do not count."""
        games = np.minimum(self._first[copies] + self._env.ended[copies], len(self._numbers) - 1)
        numbers: NDArray[np.int64] = self._numbers[games]
        return numbers


def _mean(returns: dict[str, float]) -> float:
    return sum(returns.values()) / len(returns)
