"""Finds the best of several runs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from ..checks import as_path
from .sinks import read_metrics
from .trust import RECORD, open_run


def best_run(runs: str | Path | Sequence[str | Path], metric: str = "eval_return", agent: str | None = None) -> Path:
    """Returns the directory of the run in which a metric was highest at the end.

    A run's value is a mean: first, for each agent or policy that reports the metric, over the last tenth of the steps
    until its last value, then over all of these. Of several equal runs the first is returned; NaN is the lowest value.

    Args:
        runs: the directories of runs, or one directory that holds them, as `marlcore train --seeds` leaves it.
        metric: any name in metrics.csv, such as "eval_return", "eval_win_rate/anchor:strong" or "episode_return".
        agent: the agent or policy whose values count; None counts all.

    Raises: ValueError: there is no run, a directory is not a run's, or a run has no value of the metric.
    """
    if isinstance(runs, (str, Path)) or not isinstance(runs, Iterable):
        folders = sorted(path.parent for path in as_path("runs", runs).glob("*/metrics.csv"))
        if not folders:
            raise ValueError(f"runs: expected a directory that holds runs, got {str(runs)!r}")
    else:
        folders = [as_path("runs", run) for run in runs]
        if not folders:
            raise ValueError("runs: expected at least one run, got none")
    return max(folders, key=lambda folder: _late_mean(folder, metric, agent))


def _late_mean(folder: Path, metric: str, agent: str | None) -> float:
    path = open_run(folder, RECORD) / "metrics.csv"
    if not path.exists():
        raise ValueError(f"runs: expected directories of runs, got {str(folder)!r}")
    values: dict[str, list[float]] = defaultdict(list)
    rows = [row for row in read_metrics(path) if row.name == metric and agent in (None, row.agent)]
    ends = {row.agent: row.step for row in sorted(rows, key=lambda row: row.step)}
    for row in rows:
        if 10 * row.step >= 9 * ends[row.agent]:
            values[row.agent].append(row.value)
    if not values:
        of = "" if agent is None else f" for {agent}"
        raise ValueError(f"metric: expected a metric each run has{of}, got {metric!r}, which {str(folder)!r} lacks")
    means = [sum(late) / len(late) for late in values.values()]
    mean = sum(means) / len(means)
    return -math.inf if math.isnan(mean) else mean
