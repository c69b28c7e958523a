"""Checks whether a run's metrics meet its stop conditions."""

import logging
import math
from collections import Counter, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from ..checks import did_you_mean
from ..config import StopConfig
from ..processes import Metric
from .callback import Stop
from .events import EvaluationEvent, Event, Events

SILENT = 10  # further values of an agent or policy after which others that have none are not waited for
ROWS = 1000  # number of metrics after which a warning says that the condition's metric has not come

log = logging.getLogger(__name__)


@dataclass(eq=False)
class StopConditions:
    """Decides whether a run has met one of its stop conditions.

    `groups` are the run's agents and its policies: one group has the names that may report the condition's metric.
    """

    config: StopConfig
    groups: Collection[Collection[str]] = ()

    def __post_init__(self) -> None:
        self._values, self._of_evaluation = self.config.values, self.config.of_evaluation  # once: they parse a name
        self._episodes = Counter[str]()
        self._windows: dict[str, deque[float]] = {}  # by agent or policy
        self._counts = Counter[str]()  # of the windows' values so far
        self._best: float | None = None  # the metric's best value (negated with `minimize`)
        self._best_step = 0
        self._known = dict[str, str]()  # other metrics before the condition's first one: an agent by name
        self._rows = 0

    def take(self, metric: Metric, event: Event | None = None) -> Stop | None:
        """Takes a metric, and the event that it completes, if any; returns a Stop if a condition is met."""
        config = self.config
        if config.seconds is not None and metric.time_s >= config.seconds:
            return Stop(f"stop.seconds: the run has taken {metric.time_s:.1f} s")
        if metric.name == "episode_return":
            self._episodes[metric.agent] += 1
            if config.episodes is not None and self._episodes[metric.agent] >= config.episodes:
                return Stop(f"stop.episodes: {self._episodes[metric.agent]:,} episodes have ended")
        watched = config.watches(metric.agent, metric.name)
        if watched:
            if metric.agent not in self._windows:
                self._best = None  # means without this agent or policy are no measure for those with it
            self._windows.setdefault(metric.agent, deque(maxlen=self._values)).append(metric.value)
            self._counts[metric.agent] += 1
        elif config.judges and not self._windows and self._rows < ROWS:
            self._expect_metric(metric, evaluated=isinstance(event, EvaluationEvent))
        complete = isinstance(event, EvaluationEvent) if self._of_evaluation else watched and self._all_came(metric)
        if complete and self._windows and all(len(window) == self._values for window in self._windows.values()):
            return self._judged(metric.step)
        return None

    def _all_came(self, metric: Metric) -> bool:
        """Whether all agents or policies that may report this metric have done so, or seem not to report it at all."""
        if self._counts[metric.agent] >= self._values + SILENT:
            return True
        groups = [group for group in self.groups if metric.agent in group] or [()]
        awaited = ([name for name in group if self.config.watches(name, metric.name)] for group in groups)
        return any(all(name in self._windows for name in names) for names in awaited)

    def _expect_metric(self, other: Metric, evaluated: bool) -> None:
        """Warns once if the condition's metric, perhaps misspelt, has not come for long; names metrics that came."""
        self._known[other.name] = other.agent
        self._rows += 1
        if self._of_evaluation and evaluated:
            self._rows = ROWS
        if self._rows == ROWS:
            names = [*self._known, *(f"{agent}/{name}" for name, agent in self._known.items())]
            hint = did_you_mean(self.config.metric, names)
            known = ", ".join(self._known)
            log.warning("stop.metric: no %r yet%s; these metrics came: %s", self.config.metric, hint, known)

    def _judged(self, step: int) -> Stop | None:
        config, sign = self.config, -1.0 if self.config.minimize else 1.0
        value = sign * sum(sum(window) / len(window) for window in self._windows.values()) / len(self._windows)
        if config.threshold is not None and value >= sign * config.threshold:
            return Stop(f"stop.threshold: {config.metric} is {sign * value:g}")
        value = -math.inf if math.isnan(value) else value
        if self._best is None or value > self._best + config.min_delta:
            self._best, self._best_step = value, step
        elif config.patience is not None and step - self._best_step >= config.patience:
            best = f"{sign * self._best:g} at step {self._best_step:,}"
            return Stop(f"stop.patience: {config.metric} is no better than {best}")
        return None

    def check_unmet(self, metrics: Iterable[Metric]) -> None:
        """Takes the earlier metrics of a resumed run. Raises ValueError if they already meet a condition."""
        events = Events(Path())
        for metric in metrics:
            if stop := self.take(metric, events.take(metric)):
                raise ValueError(f"stop: expected conditions that the resumed run has not met, got {stop.reason}")
