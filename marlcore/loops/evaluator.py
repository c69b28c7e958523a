"""The evaluator's loop: plays greedy episodes with the newest weights at intervals.

Weights do not change during an evaluation, and are not evaluated twice.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..config import AssignedPolicy
from ..errors import TimedOut
from ..interfaces import VectorEnvironment
from ..weights import Subscriber
from .acting_policy import ActingPolicy
from .episodes import play

GoesOn = Callable[[], bool]  # asked before each round of actions; False ends the evaluation
Games = Callable[[int, GoesOn], bool]  # plays, reports and saves the weights of a step count; False if `GoesOn` was


@dataclass(frozen=True)
class Candidate:
    """A policy that is evaluated; saves its best and newest checkpoints."""

    policy: AssignedPolicy
    acting: ActingPolicy  # acts greedily by the weights that `subscriber` pulls; each game uses a copy
    subscriber: Subscriber
    kept: Any  # record's KeptCheckpoints, which this room must not import
    saved: Sequence[str] = ()  # the names of the weights that a checkpoint holds; empty for all

    @property
    def step(self) -> int:
        """The run's step count when the weights were published."""
        return int(self.subscriber.extras["step"])

    def keep(self, mean: float, best: float | None = None) -> None:
        """Saves the weights, whose mean return over the policy's agents is `mean`; see `KeptCheckpoints.add`."""
        weights: Mapping[str, Any] = self.acting.network.weights
        weights = {name: weights[name] for name in self.saved or weights}
        updates = int(self.subscriber.extras["updates"])
        state = {"acting": weights, "version": self.subscriber.version, "updates": updates, "step": self.step}
        self.kept.add(state, mean, best)


def play_in_common(
    env: VectorEnvironment, candidates: Sequence[Candidate], episodes: int, seed: Callable[[int], int],
    report: Callable[[str, str, float, int], None], now: int, goes_on: GoesOn,
) -> bool:  # fmt: skip
    """Plays games of all policies, seeded by seed(now); then reports their results and saves the weights.

    Returns False, without results, if `goes_on` ends the games.
    """
    seed_now = seed(now)
    players = {
        agent: replace(candidate.acting, generator=np.random.default_rng(seed_now + index))
        for index, candidate in enumerate(candidates)
        for agent in candidate.policy.agents
    }
    outcome = play(env, players, episodes, seed_now, goes_on)
    if outcome is None:
        return False
    mean, std = outcome.mean, outcome.std
    for candidate in candidates:
        agents = candidate.policy.agents
        candidate.keep(sum(mean[agent] for agent in agents) / len(agents))
        for agent in agents:
            length = float(outcome.lengths[agent].mean())
            values = {"eval_return": mean[agent], "eval_length": length, "eval_distinct": float(outcome.distinct)}
            if outcome.distinct > 1:
                values["eval_return_std"] = std[agent]
            for name, value in values.items():
                report(agent, name, value, candidate.step)
    return True


@dataclass
class Evaluator:
    """Evaluates a run's policies every `interval` steps and every `seconds` seconds; 0 disables either.

    `skipped` counts the multiples of `interval` that passed unevaluated because an earlier evaluation still ran.
    """

    candidates: Sequence[Candidate]
    games: Games
    interval: int
    steps: Callable[[], int]  # the run's step count
    seconds: float = 0.0
    clock: Callable[[], float] = time.monotonic
    begins: Callable[[int], None] = lambda step: None  # called with the step count when an evaluation begins

    def __post_init__(self) -> None:
        self._last_s = self.clock()
        self.last = max((candidate.kept.last for candidate in self.candidates), default=0)  # of the last evaluation
        self.skipped = 0
        self._evaluated: list[int] = []  # versions of the weights evaluated last

    @property
    def due(self) -> bool:
        return self._passed(self.steps()) > 0 or (self.seconds > 0 and self.clock() - self._last_s >= self.seconds)

    def _passed(self, now: int) -> int:
        """Returns how many multiples of `interval` the step count has reached since the last evaluation."""
        return now // self.interval - self.last // self.interval if self.interval else 0

    def evaluate(self, goes_on: GoesOn, final: bool = False) -> bool:
        """Evaluates newer weights, if any; returns whether it did. An evaluation that `goes_on` ends remains due.

        If the last step is no multiple of `interval`, a `final` evaluation does not stand in for one that was due.
        """
        now, now_s = self.steps(), self.clock()
        try:
            for candidate in self.candidates:
                candidate.subscriber.pull()
        except TimedOut:
            return False  # the learner is overwriting the weights, or died doing so
        versions = [candidate.subscriber.version for candidate in self.candidates]
        if not all(versions):
            return False
        self.begins(now)
        played = versions != self._evaluated and self.games(now, goes_on)
        if played:
            self._evaluated = versions
            on_time = not final or (self.interval > 0 and now % self.interval == 0)
            self.skipped += max(0, self._passed(now) - on_time)
        if versions == self._evaluated:
            self.last, self._last_s = now, now_s
        return played
