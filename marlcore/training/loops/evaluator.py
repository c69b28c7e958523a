"""The evaluator's loop: at intervals, greedy episodes with the newest weights; actors and learners know nothing of it.

An evaluation never changes its weights midway, and the same weights are not evaluated twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

from ...errors import TimedOut
from ...interfaces import Algorithm, VectorEnvironment
from ...spaces import Spaces
from ..config import EvaluationConfig
from .episodes import play
from .policy import ActingModel, Policy, PolicyPlayer, Subscriber

Report = Callable[[str, str, float, int], None]


class Kept(Protocol):
    """A policy's checkpoints by evaluation; see record/checkpoints.py."""

    last: int

    def best_weights(self) -> dict[str, torch.Tensor] | None: ...

    def add(self, state: dict[str, Any], mean: float, best: float | None = None) -> None: ...


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
    kept: Kept

    def player(
        self, copies: int, pad: Literal["repeat", "zero"], seed: int, model: ActingModel | None = None
    ) -> PolicyPlayer:
        """The policy with its present weights, or those of another model; greedy."""
        policy = Policy(self.algorithm, model or self.model, np.random.default_rng(seed), self.device)
        return PolicyPlayer(policy, self.spaces, copies, pad)

    @property
    def step(self) -> int:
        """The run's step count when the weights were published."""
        return int(self.subscriber.extras["step"])

    def keep(self, mean: float, best: float | None = None) -> None:
        """Saves the weights, whose mean return over the policy's agents is `mean`; see `KeptCheckpoints.add`."""
        weights = {name: tensor.detach().cpu().clone() for name, tensor in self.model.state_dict().items()}
        updates = int(self.subscriber.extras["updates"])
        state = {"acting": weights, "version": self.subscriber.version, "updates": updates, "step": self.step}
        self.kept.add(state, mean, best)


class Games(Protocol):
    """How the newest weights are evaluated."""

    def play(self, now: int, goes_on: Callable[[], bool]) -> bool:
        """Plays the episodes of an evaluation at a step count, reports them, and keeps the weights.

        Returns: whether all were played; otherwise it reported nothing.
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

    def play(self, now: int, goes_on: Callable[[], bool]) -> bool:
        """See `Games`."""
        seed = self._seed(now)
        players = {
            agent: candidate.player(self._env.copies, self._pad, seed + index)
            for index, candidate in enumerate(self._candidates)
            for agent in candidate.agents
        }
        outcome = play(self._env, players, self._config.episodes, seed, goes_on)
        if outcome is None:
            return False
        mean, std = outcome.mean, outcome.std
        for candidate in self._candidates:
            agents, step = candidate.agents, candidate.step
            candidate.keep(sum(mean[agent] for agent in agents) / len(agents))
            for agent in agents:
                self._report(agent, "eval_return", mean[agent], step)
                self._report(agent, "eval_length", float(outcome.lengths[agent].mean()), step)
                self._report(agent, "eval_distinct", float(outcome.distinct), step)
                if outcome.distinct > 1:
                    self._report(agent, "eval_return_std", std[agent], step)
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

    def evaluate(self, goes_on: Callable[[], bool]) -> bool:
        """Evaluates the newest weights, unless they are the last evaluated ones.

        Args:
            goes_on: asked before each round of actions; False ends the evaluation.

        Returns: whether all its episodes were played. Otherwise it is still due: it was ended, or a policy has no whole
            weights now.
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
        played = versions != self._evaluated and self._games.play(now, goes_on)
        if played:
            self._evaluated = versions
        if versions == self._evaluated:
            self._due = self._after(now)
        return played

    def _after(self, step: int) -> int:
        """The first multiple of the interval after a step."""
        return (step // self._interval + 1) * self._interval
