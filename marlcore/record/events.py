"""The events of a run, which are evaluations and checkpoints, and their recognition in the stream of metrics."""

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ..config import EVALUATED
from ..processes import Metric
from .run_directory import checkpoint_path

EVALUATION_S, CHECKPOINT_S = "eval_s", "checkpoint_s"  # the last metrics of an evaluation and of a checkpoint
SKIPPED = "eval_skipped"


@dataclass(frozen=True)
class EvaluationEvent:
    """An evaluation of the run.

    Attributes:
        step: the run's step when the evaluated weights were published.
        time_s: seconds since the run's beginning.
        returns: by agent, the mean return of the agent's episodes; in self-play also by policy.
        values: by (agent or policy, name), every metric of the evaluation.
    """

    step: int
    time_s: float
    returns: dict[str, float]
    values: dict[tuple[str, str], float]


@dataclass(frozen=True)
class CheckpointEvent:
    """A checkpoint that a learner wrote.

    Attributes:
        policy: the policy's name.
        step: the run's step.
        time_s: seconds since the run's beginning.
        path: the file, which the policy's next checkpoint replaces.
    """

    policy: str
    step: int
    time_s: float
    path: Path


Event: TypeAlias = EvaluationEvent | CheckpointEvent


class Events:
    """Recognises a run's events in its metrics."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._values: dict[tuple[str, str], float] = {}  # of the evaluation that is being reported

    def take(self, metric: Metric) -> Event | None:
        """Returns the event that a metric completes, if any. Call it for every metric of the run, in order."""
        if metric.name == CHECKPOINT_S:
            path = checkpoint_path(self._run_dir, metric.agent)
            return CheckpointEvent(metric.agent, metric.step, metric.time_s, path)
        if metric.name == EVALUATION_S:
            values, self._values = self._values, {}
            returns = {agent: value for (agent, name), value in values.items() if name == "eval_return"}
            return EvaluationEvent(metric.step, metric.time_s, returns, values)
        if metric.name.startswith(EVALUATED):
            self._values[metric.agent, metric.name] = metric.value
        return None
