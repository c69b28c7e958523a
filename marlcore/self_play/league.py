"""The learner's part of self-play: records results in the payoff table, admits opponents, and sets their odds."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import InitVar, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..config import MAIN, MAIN_EXPLOITER, SelfPlayConfig
from ..loops import LATEST
from ..processes import Telemetry
from ..record import canvas, checkpoint_path, read_json, say_that_none_ended, write_json
from ..weights import ParameterStore
from .matches import results_in
from .matchmaking import Standings, odds_of
from .opponents import name_of
from .pool import SPAN, Pool, Snapshot, members_of, pooled_numbers
from .ratings import Rating, rating_of

_NORMAL_975 = 1.96  # the normal distribution's 0.975 quantile
_MOST_ROWS = 400  # rows of the history; beyond, every second row is dropped


@dataclass
class Standing:
    """The league's state in a checkpoint; fields that an older checkpoint lacks get their defaults."""

    payoff: dict[str, Any] = field(default_factory=dict)  # the table's `state_dict`
    games_before: int = 0  # games before the last admission
    begun: bool = False
    highest: float | None = None  # win rate of `League.best` against the anchors, over a whole window
    measured: int = 0  # games against the anchors before the present window
    decided: int = 0  # the newest copy after which it was drawn whether an exploiter returns to its initial weights
    results: int | None = None  # the nonce of the results' telemetry
    positions: list[int] = field(default_factory=list)  # positions up to which results were read


@dataclass
class League:
    """Manages one policy's opponents for its learner.

    From time to time, a copy of the policy joins the policy's pool. An exploiter, which looks for weaknesses of other
    policies, may then return to its initial weights, to find other weaknesses.
    """

    config: SelfPlayConfig
    pool: Pool
    rivals: Mapping[str, ParameterStore]  # the pools of all policies of the league, by name; this policy's comes first
    results: Telemetry  # of all games; each actor and each other machine reports in its own lane
    run_dir: Path  # of the payoff table
    report: Callable[[str, float], None]
    state: InitVar[Mapping[str, Any]]  # the `state_dict` in a checkpoint; empty without a checkpoint
    best: Snapshot | None = None  # of the learner; None without rollback
    initial: Snapshot | None = None  # of the learner; None unless it is an exploiter
    seed: int = 0  # seeds the draws of returns to `initial`

    def __post_init__(self, state: Mapping[str, Any]) -> None:
        self._standing = standing = Standing(**state)
        self._payoff = Payoff(self.config.window, rating_of(self.config), **standing.payoff)
        standing.begun |= self.config.begin_win_rate is None and self.config.begin_step is None
        self._step, self._role = 0, self.config.role_of(self.pool.policy)
        for number in pooled_numbers(self.pool.store):
            if number not in self._payoff.ratings:  # the copy joined after the checkpoint, or the rating is new
                self._payoff.admit(number)
        if standing.results == self.results.handle.nonce:  # this run's last learner died: read from its checkpoint on
            self.results.read_from(standing.positions)

    def publish(self, numbers: Mapping[str, float]) -> dict[str, Any]:
        """Records new results, admits the policy if it is due, and returns the opponents and odds to publish."""
        for opponent, result in results_in(self.results):
            self._payoff.record(opponent, result)
        self._step = int(numbers["step"])
        begins = not self._standing.begun and self._may_begin()
        self._standing.begun |= begins
        if self.best is not None:
            self._keep_or_roll_back(self.best)
        if begins or self._admits(int(numbers["updates"])):
            self._admit(numbers)
        self._return_if_due()
        counts = {"steps": self._step, "updates": int(numbers["updates"])}
        candidates, begun = self._candidates, self._standing.begun
        opponents, odds = odds_of(self.config, candidates, self._payoff.against, counts, begun, self._role)
        return {"opponents": opponents, "odds": odds}

    def _admit(self, numbers: Mapping[str, float]) -> None:
        if self.initial is not None and not pooled_numbers(self.pool.store):
            self.initial.keep()
        self.pool.admit(dict(numbers))
        number = self.pool.store.version
        self._standing.games_before = self._payoff.games
        self._payoff.admit(number)

    def _return_if_due(self) -> None:
        """Draws, for each new copy in the pool, whether an exploiter returns to its initial weights.

        After a crash, the learner may make the same draw again.
        """
        first, number = max(self._standing.decided, 1) + 1, self.pool.store.version
        self._standing.decided = number
        odds = 1.0 if self._role == MAIN_EXPLOITER else self.config.reset
        draws = (np.random.default_rng([self.seed, each]).random() for each in range(first, number + 1))
        if self.initial is not None and any(draw < odds for draw in draws):
            self.initial.restore()
            self._payoff.forget()
            self._standing.highest = None
            self.report("reset", float(number))

    @property
    def _candidates(self) -> list[int]:
        """The numbers of all opponents that the policy's role allows, except the latest policy and the anchors."""
        if self._role != MAIN_EXPLOITER:
            return members_of(self.rivals.values())
        return [place * SPAN for place, name in enumerate(self.rivals) if self.config.role_of(name) == MAIN]

    def _may_begin(self) -> bool:
        """Returns whether the policy has reached `begin_win_rate` or `begin_step`; None is never reached."""
        config, rate = self.config, self._payoff.anchor_rate
        beats = config.begin_win_rate is not None and rate is not None and rate >= config.begin_win_rate
        return beats or (config.begin_step is not None and self._step >= config.begin_step)

    def _keep_or_roll_back(self, best: Snapshot) -> None:
        """After each whole window of games against anchors, saves the best learner so far, or rolls back to it."""
        standing, rate = self._standing, self._payoff.anchor_rate
        games = sum(sum(counts) for number, counts in self._payoff.totals.items() if number < 0)
        if rate is None or games - standing.measured < self.config.window:
            return
        standing.measured = games
        if standing.highest is None or rate > standing.highest:
            standing.highest = rate
            best.keep()
        elif rate < standing.highest - (self.config.rollback or 0.0):
            best.restore()
            standing.highest = None  # the rate may have been luck, so the next window measures it again
            self.report("rollback", rate)

    def _admits(self, updates: int) -> bool:
        config, rate = self.config, self._payoff.win_rate
        if not pooled_numbers(self.pool.store):
            return True
        if not self._standing.begun:
            return False
        if config.admit_updates is not None and updates - self.pool.updates >= config.admit_updates:
            return True
        wins = config.admit_win_rate is not None and rate is not None and rate >= config.admit_win_rate
        return wins and self._payoff.games - self._standing.games_before >= config.window

    def report_rates(self) -> None:
        """Reports the win rates, ratings and the pool's size; adds the win rates to the table's history."""
        payoff = self._payoff
        payoff.note(self._step, self._opponents)
        self.report("pool_size", float(len(pooled_numbers(self.pool.store))))
        self.report("games", float(payoff.games))
        if self.results.lost:
            self.report("games_lost", float(self.results.lost))
        if payoff.win_rate is not None:
            self.report("win_rate", payoff.win_rate)
        self.report("self_play", float(self._standing.begun))
        for number, rating in payoff.ratings.items():
            if number == LATEST or number in self._opponents:
                name = f"/{self._name(number)}" if number != LATEST else ""
                self.report(f"{self.config.rating}{name}", rating[0])
        for number in self._opponents:
            self.report(f"win_rate/{self._name(number)}", payoff.rate(number))

    def write(self) -> None:
        """Writes the payoff table to payoff.json or, in a league, to payoff.<policy>.json."""
        name = f"payoff.{checkpoint_path(self.run_dir, self.pool.policy).stem}" if self.config.roles else "payoff"
        self._payoff.write(self.run_dir / f"{name}.json", self._name)

    def _name(self, number: int) -> str:
        return name_of(number, self.config.names, [*self.rivals])

    def state_dict(self) -> dict[str, Any]:
        self._payoff.note(self._step, self._opponents)
        payoff, nonce, positions = self._payoff.state_dict(), self.results.handle.nonce, [*self.results.positions]
        return vars(replace(self._standing, payoff=payoff, results=nonce, positions=positions))

    @property
    def _opponents(self) -> list[int]:
        return [*range(-1, -len(self.config.anchors) - 1, -1), *self._candidates]


@dataclass
class Payoff:
    """Counts wins, draws and losses against each opponent, over all games and over the last `window` games."""

    window: int
    rating: Rating
    totals: dict[int, list[int]] = field(default_factory=dict)  # wins, draws, losses
    last: dict[int, list[int]] = field(default_factory=dict)  # results against each opponent
    newest: list[int] = field(default_factory=list)  # results against all opponents
    anchored: list[int] = field(default_factory=list)  # results against the anchors
    ratings: dict[int, list[float]] = field(default_factory=dict)  # of the policy that learns and its opponents
    rated_by: str = ""
    history: list[tuple[int, dict[int, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:  # a resumed run may have a smaller window
        for results in (*self.last.values(), self.newest, self.anchored):
            del results[: -self.window]
        if self.rated_by != self.rating.name:  # a resumed run may have another rating
            self.ratings, self.rated_by = {LATEST: self.rating.first}, self.rating.name

    @property
    def games(self) -> int:
        return sum(sum(counts) for counts in self.totals.values())

    @property
    def anchor_rate(self) -> float | None:
        """The win rate over the last `window` games against the anchors, or None if there were fewer games."""
        return _score(self.anchored) / self.window if len(self.anchored) == self.window else None

    def record(self, opponent: int, result: int) -> None:
        """Records a game's result: 1 won, 0 drawn, -1 lost."""
        self.totals.setdefault(opponent, [0, 0, 0])[1 - result] += 1
        windows = [self.last.setdefault(opponent, []), self.newest]
        for results in windows if opponent > 0 else [*windows, self.anchored]:
            results.append(result)
            del results[: -self.window]
        ratings = self.ratings[LATEST], self.ratings.get(opponent, self.rating.first)
        self.ratings[LATEST], self.ratings[opponent] = self.rating.after(*ratings, result)

    def admit(self, number: int) -> None:
        """Gives a new member of the pool the current rating of the policy that it copies."""
        self.ratings[number] = list(self.ratings[LATEST])

    def rate(self, opponent: int) -> float:
        """Returns the win rate against an opponent, with a win and a loss added, so that it is never 0 or 1."""
        last = self.last.get(opponent, ())
        return (_score(last) + 1.0) / (len(last) + 2.0)

    def against(self, opponents: Sequence[int]) -> Standings:
        rating, first = self.ratings[LATEST], self.rating.first
        return Standings(
            np.array([self.rate(number) for number in opponents]),
            np.array([sum(self.totals.get(number, ())) for number in opponents], np.int64),
            np.array([self.rating.evenness(rating, self.ratings.get(number, first)) for number in opponents]),
        )

    def forget(self) -> None:
        """Forgets the win rates and the policy's rating, for a policy that has returned to its initial weights."""
        self.last, self.newest, self.anchored, self.ratings[LATEST] = {}, [], [], self.rating.first

    @property
    def win_rate(self) -> float | None:
        """The win rate over the last `window` games against all opponents, or None before the first game."""
        return _score(self.newest) / len(self.newest) if self.newest else None

    def note(self, step: int, opponents: Iterable[int]) -> None:
        """Adds the win rates against these opponents to the history; forgets the last games against others."""
        rates = {number: self.rate(number) for number in opponents if number in self.last}
        self.last = {number: self.last[number] for number in rates}
        if rates:
            if self.history and self.history[-1][0] == step:
                self.history.pop()
            self.history.append((step, rates))
        if len(self.history) > _MOST_ROWS:
            self.history = self.history[-1::-2][::-1]

    def state_dict(self) -> dict[str, Any]:
        """Returns all fields except `window` and `rating`, which a resumed run may change."""
        return deepcopy({name: value for name, value in vars(self).items() if name not in ("window", "rating")})

    def write(self, path: Path, name: Callable[[int], str]) -> None:
        opponents = {
            name(number): {
                "games": sum(counts),
                **dict(zip(("wins", "draws", "losses"), counts, strict=True)),
                "win_rate": _score(self.last[number]) / len(self.last[number]) if self.last.get(number) else None,
                "interval": _interval(self.last[number]) if self.last.get(number) else None,
                "rating": self.rating.shown(self.ratings.get(number, self.rating.first)),
            }
            for number, counts in sorted(self.totals.items())
        }
        history = [
            {"step": step, "win_rates": {name(number): rate for number, rate in rates.items()}}
            for step, rates in self.history
        ]
        rating = {"by": self.rated_by, "policy": self.rating.shown(self.ratings[LATEST])}
        write_json(path, {"rating": rating, "opponents": opponents, "history": history}, indent=1)


def _score(results: Iterable[int]) -> float:
    """Sums the points of games: 1 for a win, one half for a draw."""
    return sum((result + 1) / 2 for result in results)


def _interval(results: Sequence[int]) -> list[float]:
    """Returns a win rate's 95 % confidence interval (Wilson 1927), to four digits; a draw counts as half a win."""
    games, spread = len(results), _NORMAL_975**2 / len(results)
    rate = _score(results) / games
    half = _NORMAL_975 * math.sqrt((rate * (1.0 - rate) + spread / 4.0) / games)
    low, high = ((rate + spread / 2.0 + sign * half) / (1.0 + spread) for sign in (-1, 1))
    return [round(low, 4), round(high, 4)]


def plot_payoff(table: Path, path: Path, title: str) -> None:
    """Plots the table in payoff.json as a heat map: a row for each opponent, a column for each noted step."""
    payoff = read_json(table)
    history, games = payoff["history"], payoff["opponents"]
    names = list(dict.fromkeys(name for row in history for name in row["win_rates"]))
    with canvas(path, title, max(3.0, 1.5 + 0.3 * len(names))) as (figure, axes):
        if not names:
            say_that_none_ended(axes)
            return
        rates = np.array([[row["win_rates"].get(name, np.nan) for row in history] for name in names])
        steps = np.array([row["step"] for row in history], np.float64)
        edges = np.append(min(0.0, steps[0] - 1), np.maximum.accumulate(steps))  # a column ends at its own step
        mesh = axes.pcolormesh(edges, np.arange(len(names) + 1), rates, vmin=0, vmax=1, cmap="RdYlGn")
        axes.set_yticks(np.arange(len(names)) + 0.5, [f"{name} ({games[name]['games']:,})" for name in names])
        axes.set_xlabel("environment steps", fontsize=12)
        axes.set_ylabel("opponent (games)", fontsize=12)
        figure.colorbar(mesh, ax=axes, label="win rate over the last games")
