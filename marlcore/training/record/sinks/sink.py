"""What a sink of metrics is, and the smallest one: a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ....processes import Metric


class Sink(Protocol):
    """Takes a run's metrics. One thread makes it and calls all of its methods.

    An exception of any method ends the sink, not the run.
    """

    def record(self, metric: Metric) -> None:
        """Takes a metric; it may be buffered until `flush`."""

    def flush(self) -> None:
        """Hands everything recorded so far to its readers; called about once a second."""

    def close(self) -> None:
        """Flushes and releases what the sink holds; the last call, also after another method raised."""


class CallbackSink:
    """Calls a function with each metric."""

    def __init__(self, function: Callable[[Metric], object]) -> None:
        self._function = function

    def record(self, metric: Metric) -> None:
        self._function(metric)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
