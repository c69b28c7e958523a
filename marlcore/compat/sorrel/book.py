"""The experiment's book: what actor and learners send becomes one record an epoch, in order, for sorrel's Logger."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Epoch:
    """What has come of one epoch; later messages of a process that was killed and started again replace earlier ones.

    Attributes:
        score: the world's total reward. epsilon: of the first agent's model.
        values: further values that sorrel's loop logs.
        steps: its turns' statistics, by the number of the first turn of each message.
        losses: by learner.
    """

    score: Any = None
    epsilon: float = math.nan
    values: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, list[Any]] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)


class Book:
    """Collects messages and records whole epochs.

    Args:
        logger: sorrel's, or None.
        learners: those whose losses make an epoch whole.

    Attributes:
        scores: of the recorded epochs. losses: of them, each the sum over all agents.
    """

    def __init__(self, logger: Any, learners: list[str]) -> None:
        self._logger = logger
        self._learners = learners
        self._epochs: dict[int, Epoch] = {}
        self.scores: list[Any] = []
        self.losses: list[float] = []

    def take(self, worker: str, message: tuple[Any, ...]) -> None:
        """Takes a message of the actor, `score` or `steps`, or of a learner, `loss`."""
        kind, number, *rest = message
        if number < len(self.scores):
            return  # it was recorded, and its process was started again since
        epoch = self._epochs.setdefault(number, Epoch())
        if kind == "loss":
            epoch.losses[worker] = rest[0]
        elif kind == "steps":
            first, steps = rest
            if first == 0:
                epoch.steps.clear()
            epoch.steps[first] = steps
        else:
            epoch.score, epoch.epsilon, epoch.values = rest

    def record(self, all_of_it: bool = False) -> None:
        """Records the epochs that are whole, in order; with `all_of_it` also those whose losses never came, as NaN."""
        while (number := len(self.scores)) in self._epochs:
            epoch = self._epochs[number]
            if epoch.score is None or (len(epoch.losses) < len(self._learners) and not all_of_it):
                return
            self._record(number, self._epochs.pop(number))

    def _record(self, number: int, epoch: Epoch) -> None:
        loss = sum(epoch.losses.get(learner, math.nan) for learner in self._learners)
        self.scores.append(epoch.score)
        self.losses.append(loss)
        if self._logger is None:
            return
        for first in sorted(epoch.steps):
            for stats in epoch.steps[first]:
                self._logger.record_step(stats)
        self._logger.record_epoch(number, loss, epoch.score, epoch.epsilon, **epoch.values)
