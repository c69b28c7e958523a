"""Whole episodes in several copies of an environment, of which a fixed number counts in each copy."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...interfaces import Outcome, Turn, VectorEnvironment
from ...observations import by_name
from .evaluation import Evaluation
from .players import Player


def play(
    env: VectorEnvironment,
    players: Mapping[str, Player],
    episodes: int,
    seed: int,
    goes_on: Callable[[], bool] = lambda: True,
) -> Evaluation | None:
    """Plays episodes from fresh starts; the same seed plays the same ones. Torch's generator is unchanged.

    Args:
        players: by agent, new ones.
        goes_on: asked before each round; False ends the evaluation, whose outcome is then None.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        env.reset(seed)
        played = _Episodes(env, players, episodes)
        while not played.done:
            if not goes_on():
                return None
            played.play_round()
    return played.outcome()


class _Episodes:
    """The returns of episodes.

    The number that counts in each copy is fixed beforehand. If instead the first ones to end counted, short episodes
    would be favoured.
    """

    def __init__(self, env: VectorEnvironment, players: Mapping[str, Player], episodes: int) -> None:
        self._env = env
        self._players = players
        self._left = counted(episodes, env.copies)  # episodes of each copy that still count
        self._place = np.cumsum(self._left) - self._left  # of each copy's present episode in the results
        self._ended = env.ended.copy()
        self._digests = {agent: [0] * env.copies for agent in env.agents}  # of each copy's present episode so far
        self._games: set[tuple[int, ...]] = set()
        self._returns = {agent: np.zeros(episodes) for agent in env.agents}
        self._lengths = {agent: np.zeros(episodes, np.int64) for agent in env.agents}
        self._infos: dict[str, dict[str, list[float]]] = {agent: defaultdict(list) for agent in env.agents}

    @property
    def done(self) -> bool:
        """Whether all episodes that count have ended."""
        return not self._left.any()

    def play_round(self) -> None:
        """Takes the actions that are due now, unless the last episode has ended."""
        outcomes, turns = self._env.observe()
        for outcome in outcomes:  # before the ends: no agent has acted in the next episode yet
            self._add(outcome)
        self._note_ends()
        if self.done:
            return
        for turn in turns:
            self._env.act(turn, self._choose(turn))

    def _choose(self, turn: Turn) -> NDArray[Any]:
        action = self._players[turn.agent].choose(turn.obs, turn.copies, turn.begins).action
        self._digest(turn.agent, turn.copies, *by_name(turn.obs).values(), action)
        return action

    def _add(self, outcome: Outcome) -> None:
        self._players[outcome.agent].reward(outcome.reward, outcome.copies)
        counts = self._left[outcome.copies] > 0
        at = self._place[outcome.copies[counts]]
        self._returns[outcome.agent][at] += outcome.reward[counts]
        self._lengths[outcome.agent][at] += 1
        self._digest(outcome.agent, outcome.copies, outcome.reward)
        for copy, numbers in outcome.infos:
            if self._left[copy]:
                for name, value in numbers.items():
                    self._infos[outcome.agent][name].append(float(value))

    def _digest(self, agent: str, copies: NDArray[np.int64], *columns: NDArray[Any]) -> None:
        """Adds arrays [k, ...] to the digests of an agent's episodes; equal ones are of equal episodes."""
        digests = self._digests[agent]
        for i, copy in enumerate(copies.tolist()):
            digests[copy] = hash((digests[copy], *(rows[i].tobytes() for rows in columns)))

    def _note_ends(self) -> None:
        ended = (self._env.ended > self._ended) & (self._left > 0)
        for copy in np.flatnonzero(ended).tolist():
            self._games.add(tuple(digests[copy] for digests in self._digests.values()))
            for digests in self._digests.values():
                digests[copy] = 0
        self._left[ended] -= 1
        self._place[ended] += 1
        self._ended[:] = self._env.ended

    def outcome(self) -> Evaluation:
        """The outcome so far."""
        infos = {
            agent: {name: sum(values) / len(values) for name, values in numbers.items()}
            for agent, numbers in self._infos.items()
        }
        return Evaluation(self._returns, self._lengths, infos, len(self._games))


def counted(episodes: int, copies: int) -> NDArray[np.int64]:
    """How many episodes count in each copy, int64 [copies]; in the results, those of a copy follow one another."""
    return np.bincount(np.arange(episodes) % copies, minlength=copies)
