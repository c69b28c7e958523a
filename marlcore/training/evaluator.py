"""The evaluator's loop: at intervals, greedy episodes with the newest weights; actors and learners know nothing of it.

An evaluation never changes its weights midway, and the same weights are not evaluated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
import torch

from ..errors import TimedOut
from ..interfaces import Algorithm, VectorEnvironment
from ..spaces import Spaces
from .checkpoints import KeptCheckpoints
from .choosers import PolicyPlayer
from .config import EvaluationConfig
from .episodes import play
from .policy import ActingModel, Player, Policy, Subscriber

__all__ = ["Candidate", "CommonGames", "Evaluator", "Games", "Report"]

Report = Callable[[str, str, float, int], None]


@dataclass(frozen=True)
class Candidate:
    """A policy to evaluate.

    Attributes:
        agents: act by it.
        model: which `subscriber` updates.
        kept: its checkpoints.
    """

    agents: tuple[str, ...]
    spaces: Spaces
    algorithm: Algorithm
    model: ActingModel
    device: torch.device
    subscriber: Subscriber
    kept: KeptCheckpoints

    def player(
        self, copies: int, pad: Literal["repeat", "zero"], seed: int, model: ActingModel | None = None
    ) -> PolicyPlayer:
        """The policy with its present weights, or those of another model; greedy."""
        policy = Policy(self.algorithm, model or self.model, np.random.default_rng(seed), self.device)
        return PolicyPlayer(Player(policy, self.spaces, copies, pad))

    @property
    def step(self) -> int:
        """The run's step count when the weights were published."""
        return int(self.subscriber.extras["step"])

    def keep(self, mean: float, best: float | None = None) -> None:
        """Saves the weights, whose mean return over the policy's agents is `mean`; see `KeptCheckpoints.add`."""
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        self.kept.add(weights, self.subscriber.version, int(self.subscriber.extras["updates"]), self.step, mean, best)


class Games(Protocol):
    """How the newest weights are evaluated."""

    def play(self, now: int, may_go_on: Callable[[], bool]) -> bool:
        """Plays the episodes of an evaluation at a step count, reports them, and keeps the weights.

        Returns: whether it did; it did not if it may not go on, and then it reported nothing.
        """


class CommonGames:
    """Games in which each agent acts by its own policy.

    Args:
        env: the copies in which they are played.
        candidates: the run's policies.
        config: the settings.
        pad: the padding of stacks; the same as in training.
        seed: an independent seed for each step count.
        report: called with (agent, name, value, step).
    """

    def __init__(
        self,
        env: VectorEnvironment,
        candidates: Sequence[Candidate],
        config: EvaluationConfig,
        pad: Literal["repeat", "zero"],
        seed: Callable[[int], int],
        report: Report,
    ) -> None:
        self._env = env
        self._candidates = candidates
        self._config = config
        self._pad = pad
        self._seed = seed
        self._report = report

    def play(self, now: int, may_go_on: Callable[[], bool]) -> bool:
        """See `Games`."""
        seed = self._seed(now)
        players = {
            agent: one.player(self._env.copies, self._pad, seed + index)
            for index, one in enumerate(self._candidates)
            for agent in one.agents
        }
        outcome = play(self._env, players, self._config.episodes, seed, may_go_on)
        if outcome is None:
            return False
        mean, std = outcome.mean, outcome.std
        for one in self._candidates:
            one.keep(sum(mean[agent] for agent in one.agents) / len(one.agents))
            for agent in one.agents:
                self._report(agent, "eval_return", mean[agent], one.step)
                self._report(agent, "eval_length", float(outcome.lengths[agent].mean()), one.step)
                self._report(agent, "eval_distinct", float(outcome.distinct), one.step)
                if outcome.distinct > 1:
                    self._report(agent, "eval_return_std", std[agent], one.step)
        return True


class Evaluator:
    """Evaluates a run's policies every `interval` steps.

    Args:
        candidates: the run's policies.
        games: that are played.
        interval: in steps.
        steps: the run's step count.
    """

    def __init__(self, candidates: Sequence[Candidate], games: Games, interval: int, steps: Callable[[], int]) -> None:
        self._candidates = candidates
        self._games = games
        self._interval = interval
        self._steps = steps
        self._due = self._after(max((one.kept.last for one in candidates), default=0))
        self._evaluated: list[int] = []  # versions

    @property
    def due(self) -> bool:
        """Whether an evaluation is due."""
        return self._steps() >= self._due

    def evaluate(self, may_go_on: Callable[[], bool]) -> bool:
        """Evaluates the newest weights, unless they are the last evaluated ones.

        Args:
            may_go_on: asked before each round of actions.

        Returns: whether it did. It did not, and is still due, if a policy has no whole weights now, or if it may not
            go on.
        """
        now = self._steps()
        try:
            for one in self._candidates:
                one.subscriber.pull()
        except TimedOut:
            return False  # their learner is overwriting them, or died doing so
        versions = [one.subscriber.version for one in self._candidates]
        if not all(versions):
            return False
        played = versions != self._evaluated and self._games.play(now, may_go_on)
        if played:
            self._evaluated = versions
        if versions == self._evaluated:
            self._due = self._after(now)
        return played

    def _after(self, step: int) -> int:
        """The first multiple of the interval after a step."""
        return (step // self._interval + 1) * self._interval
