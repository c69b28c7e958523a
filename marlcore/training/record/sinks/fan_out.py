"""A run's sinks together: each metric goes to metrics.csv at once, and to every other sink behind its queue."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....processes import Metric
from ....references import resolve
from .background import CLOSE_S, Background, CallbackSink, Sink
from .csv import CsvSink
from .tensorboard import TensorBoardSink
from .wandb import WandbSink, check_wandb

if TYPE_CHECKING:
    from ...config import MetricsConfig

log = logging.getLogger(__name__)


class Sinks:
    """Sinks as one: metrics.csv, which the run's directory closes, and others with a thread each."""

    def __init__(self, csv: CsvSink, others: list[Background]) -> None:
        self._csv = csv
        self._others = others
        self._closed = False

    def record(self, metric: Metric) -> None:
        """Takes a metric. Raises OSError: metrics.csv could not be written."""
        self._csv.record(metric)
        for sink in self._others:
            sink.record(metric)

    def flush(self) -> None:
        """Hands everything recorded so far to its readers; only metrics.csv is flushed at once."""
        self._csv.flush()
        for sink in self._others:
            sink.flush()

    def close(self, timeout: float = CLOSE_S) -> None:
        """Closes the others, in `timeout` seconds together, and logs how many metrics each has lost; twice is fine."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + timeout
        for sink in self._others:
            sink.end()
        for sink in self._others:
            sink.close(max(deadline - time.monotonic(), 0.0))
            if sink.lost:
                log.warning("metrics: the sink %s lost %d metrics, which metrics.csv holds", sink.name, sink.lost)

    @property
    def lost(self) -> dict[str, int]:
        """By sink, the metrics that it has not taken; metrics.csv loses none."""
        return {sink.name: sink.lost for sink in self._others}


def open_sinks(
    csv: CsvSink, run_dir: Path, config: MetricsConfig, callback: Callable[[Metric], object] | None = None
) -> Sinks:
    """The sinks of a configuration, and the callback's; they are made at the first metric.

    Raises: ValueError: a sink cannot be imported; wandb has no credentials.
    """
    others = [Background(name, _maker(name, run_dir, config)) for name in config.sinks if name != "csv"]
    if callback is not None:
        others.append(Background("callback", partial(CallbackSink, callback)))
    return Sinks(csv, others)


def _maker(name: str, run_dir: Path, config: MetricsConfig) -> Callable[[], Sink]:
    if name == "tensorboard":
        return partial(TensorBoardSink, run_dir)
    if name == "wandb":
        check_wandb(config.wandb_mode)
        return partial(WandbSink, run_dir, config.wandb_project, config.wandb_mode)
    own: Any = resolve("metrics.sinks", name)
    if not callable(own):
        raise ValueError(f"metrics.sinks: expected module:Class, got {name!r}, which is no class")
    return partial(own, run_dir)
