"""Plays whole episodes in several copies of an environment; computes returns by agent, with confidence intervals."""

import io
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from ..interfaces import Outcome, VectorEnvironment
from ..observations import by_name
from ..tables import FittedTable
from .players import Player
from .seeds import torch_seeded

TITLES = ("mean return", "95 % confidence", "std", "min", "max", "mean length")
WINNER = "winner"  # a number in the info at an episode's end: above 0 if this agent won, below 0 if it lost
WIDTH = 100  # of the table as text


@dataclass(frozen=True)
class Evaluation:
    """The outcome of an evaluation's episodes.

    Attributes:
        returns: by agent, float64 [episodes]: the sum of the agent's rewards, even if the agent never acted.
        lengths: by agent, int64 [episodes]: the number of the agent's actions.
        infos: by agent and name, the mean of the numbers with this name in the agent's infos at the ends of episodes.
        distinct: the number of different episodes; episodes are equal if all observations, actions and rewards are. If
            it is 1 after several episodes, all are copies of one game, and the spread of returns is unknown.
        results: by agent, int64 [episodes]: 1 after a win, 0 after a draw, -1 after a loss, by the sign of
            `info["winner"]` at the episode's end. Without this number, the agent's return is compared with the
            highest return of the other agents, or with 0 if there are no others.
    """

    returns: Mapping[str, NDArray[np.float64]]
    lengths: Mapping[str, NDArray[np.int64]]
    infos: Mapping[str, Mapping[str, float]]
    distinct: int
    results: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)

    @property
    def episodes(self) -> int:
        return len(next(iter(self.returns.values())))

    @property
    def mean(self) -> dict[str, float]:
        """The mean return, by agent."""
        return {agent: float(returns.mean()) for agent, returns in self.returns.items()}

    @property
    def std(self) -> dict[str, float]:
        """The sample standard deviation of the return, by agent; NaN if `distinct` is 1."""
        if self.distinct == 1:
            return dict.fromkeys(self.returns, math.nan)
        return {agent: float(returns.std(ddof=1)) for agent, returns in self.returns.items()}

    @property
    def interval(self) -> dict[str, tuple[float, float]]:
        """The 95 % confidence interval of the mean return, by agent; NaN if `distinct` is 1.

        mean +- t(d - 1) s / sqrt(d - 1), where d is `distinct` (copies of a game tell nothing new about the mean), t
        is Student's 0.975 quantile, and s^2 is the mean squared deviation of all episodes.
        """
        freedom = self.distinct - 1
        scale = t_975(freedom) / math.sqrt(max(freedom, 1))
        halves = {agent: scale * float(returns.std()) for agent, returns in self.returns.items()}
        return {agent: (mean - halves[agent], mean + halves[agent]) for agent, mean in self.mean.items()}

    def __rich__(self) -> FittedTable:
        names = list(dict.fromkeys(name for numbers in self.infos.values() for name in numbers))
        headline = [f"{self.episodes} episode{'s' if self.episodes > 1 else ''}"]
        if self.distinct == 1 < self.episodes:
            headline.append("all are copies of one game: neither the environment nor the policies vary it")
        elif self.distinct < self.episodes:
            headline.append(f"{self.distinct} of them distinct, the others are copies")
        titles = [*TITLES, *(f"info/{name}" for name in names)]
        return FittedTable(headline, "agent", titles, {agent: self._cells(agent, names) for agent in self.returns})

    def _cells(self, agent: str, infos: list[str]) -> list[str]:
        returns, (low, high) = self.returns[agent], self.interval[agent]
        single = self.distinct == 1
        return [
            f"{returns.mean():,.2f}",
            "-" if single else f"{low:,.2f} to {high:,.2f}",
            "-" if single else f"{self.std[agent]:,.2f}",
            f"{returns.min():,.2f}",
            f"{returns.max():,.2f}",
            f"{self.lengths[agent].mean():,.1f}",
            *(f"{self.infos[agent][name]:,.4g}" if name in self.infos.get(agent, {}) else "" for name in infos),
        ]

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=WIDTH, color_system=None).print(self)
        return text.getvalue().rstrip("\n")


def t_975(freedom: int) -> float:
    """Returns the 0.975 quantile of Student's t distribution with `freedom` degrees of freedom; NaN for 0.

    It is sqrt(freedom) tan(angle). Bisection finds the angle at which the probability between -t and t, a finite sum
    (Abramowitz and Stegun, 26.7.3 and 26.7.4), is 0.95.
    """
    if freedom < 1:
        return math.nan
    odd = freedom % 2
    k = np.arange(1 + odd, freedom - 2, 2)
    low, high = 0.0, math.pi / 2
    for _ in range(50):
        angle = (low + high) / 2
        sine, cosine = math.sin(angle), math.cos(angle)
        within = sine * (1.0 + np.cumprod(k / (k + 1) * cosine**2).sum())
        if odd:
            within = (angle + (freedom > 1) * cosine * within) * 2 / math.pi
        low, high = (angle, high) if within < 0.95 else (low, angle)
    return math.sqrt(freedom) * math.tan(high)


def play(
    env: VectorEnvironment,
    players: Mapping[str, Player],
    episodes: int,
    seed: int,
    goes_on: Callable[[], bool] = lambda: True,
    watch: Callable[[int], object] = lambda ended: None,
) -> Evaluation | None:
    """Plays episodes, which the seed determines if the players are new. Returns None if `goes_on` returns False.

    Calls `watch` after each round with the number of ended episodes.
    """
    with torch_seeded(seed):
        env.reset(seed)
        played = _Episodes(env, players, episodes)
        while not played.done:
            if not goes_on():
                return None
            played.play_round()
            watch(episodes - int(played.left.sum()))
    return played.outcome()


class _Episodes:
    """Plays a fixed number of episodes in each copy. (Counting the first episodes to end would favour short ones.)"""

    def __init__(self, env: VectorEnvironment, players: Mapping[str, Player], episodes: int) -> None:
        self._env = env
        self._players = players
        self.left = counted(episodes, env.copies)  # episodes of each copy that still count
        self._place = np.cumsum(self.left) - self.left  # by copy: the index of its present episode in the results
        self._ended = env.ended.copy()
        self._digests = {agent: [0] * env.copies for agent in env.agents}  # of each copy's present episode so far
        self._games: set[tuple[int, ...]] = set()
        self._returns = {agent: np.zeros(episodes) for agent in env.agents}
        self._lengths = {agent: np.zeros(episodes, np.int64) for agent in env.agents}
        # By agent and name: each episode's last number, since an agent may end several times in an episode.
        self._infos: dict[str, dict[str, dict[int, float]]] = {agent: defaultdict(dict) for agent in env.agents}

    @property
    def done(self) -> bool:
        return not self.left.any()

    def play_round(self) -> None:
        outcomes, turns = self._env.observe()
        for outcome in outcomes:  # all of them belong to episodes that began earlier
            self._add(outcome)
        self._note_ends()
        if self.done:
            return
        for turn in turns:
            action = self._players[turn.agent].choose(turn.obs, turn.copies, turn.begins).action
            self._digest(turn.agent, turn.copies, *by_name(turn.obs).values(), action)
            self._lengths[turn.agent][self._place[turn.copies[self.left[turn.copies] > 0]]] += 1
            self._env.act(turn, action)

    def _add(self, outcome: Outcome) -> None:
        if outcome.acted:
            self._players[outcome.agent].reward(outcome.reward, outcome.copies)
        counts = self.left[outcome.copies] > 0
        places = self._place[outcome.copies[counts]]
        self._returns[outcome.agent][places] += outcome.reward[counts]
        self._digest(outcome.agent, outcome.copies, outcome.reward)
        for copy, numbers in outcome.infos:
            if self.left[copy]:
                for name, value in numbers.items():
                    self._infos[outcome.agent][name][int(self._place[copy])] = float(value)

    def _digest(self, agent: str, copies: NDArray[np.int64], *columns: NDArray[Any]) -> None:
        """Adds arrays [k, ...] to the digests of an agent's episodes; equal episodes have equal digests."""
        digests = self._digests[agent]
        for i, copy in enumerate(copies.tolist()):
            digests[copy] = hash((digests[copy], *(rows[i].tobytes() for rows in columns)))

    def _note_ends(self) -> None:
        ended = (self._env.ended > self._ended) & (self.left > 0)
        for copy in np.flatnonzero(ended).tolist():
            self._games.add(tuple(digests[copy] for digests in self._digests.values()))
            for digests in self._digests.values():
                digests[copy] = 0
        self.left[ended] -= 1
        self._place[ended] += 1
        self._ended[:] = self._env.ended

    def outcome(self) -> Evaluation:
        infos = {
            agent: {name: sum(values.values()) / len(values) for name, values in numbers.items()}
            for agent, numbers in self._infos.items()
        }
        results = {agent: self._results_of(agent) for agent in self._returns}
        return Evaluation(self._returns, self._lengths, infos, len(self._games), results)

    def _results_of(self, agent: str) -> NDArray[np.int64]:
        returns = self._returns[agent]
        others = [returns for other, returns in self._returns.items() if other != agent] or [np.zeros_like(returns)]
        results: NDArray[np.int64] = compared(returns, np.max(others, axis=0)).astype(np.int64)
        for place, winner in self._infos[agent].get(WINNER, {}).items():
            if not math.isnan(winner):
                results[place] = np.sign(winner)
        return results


def compared(returns: Any, others: Any) -> Any:
    """Returns 1 where `returns` are higher than `others`, -1 where lower, 0 where they are equal up to rounding."""
    return np.where(np.isclose(returns, others, rtol=1e-9, atol=1e-9), 0.0, np.sign(np.subtract(returns, others)))


def counted(episodes: int, copies: int) -> NDArray[np.int64]:
    """Returns the number of episodes that count in each copy, int64 [copies]."""
    return np.bincount(np.arange(episodes) % copies, minlength=copies)
