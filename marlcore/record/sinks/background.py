"""A run's sinks: metrics.csv is written at once; every other sink has a thread and a queue, which may drop metrics."""

import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Protocol

from ...config import MetricsConfig
from ...processes import Metric
from ...references import resolve
from ..events import Event
from .csv import CsvSink
from .tensorboard import TensorBoardSink
from .wandb import WandbSink, check_wandb

CAPACITY = 10_000  # metrics in a queue; about 2 MB
CLOSE_S = 5.0  # seconds that a sink gets to write its queue and close
CALLBACK = "callback"
LOOK_S = 0.1

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes a run's metrics. A single thread makes the sink and calls all its methods.

    An exception in any method ends the sink, not the run. A sink may have a method `announce(event)`, which is called
    with each event of the run after the metric that completes it. A slow sink loses metrics, but no events.
    """

    def record(self, metric: Metric) -> None:
        """Takes a metric; it may be buffered until `flush`."""

    def flush(self) -> None:
        """Makes everything recorded so far visible to readers; called about once a second."""

    def close(self) -> None:
        """Flushes and releases the sink's resources; always the last call, even after another method has raised."""


class Background:
    """Runs a sink in another thread. If the queue is full, metrics are dropped and counted; events are never dropped.

    The first metric starts the thread, so a run that fails earlier leaves no trace in the sink.
    """

    def __init__(self, name: str, make: Callable[[], Sink], capacity: int = CAPACITY) -> None:
        self.name = name
        self._make = make
        self._capacity = capacity
        self._queue: SimpleQueue[Metric | Event | Literal["flush", "end"]] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._offered, self._announced = 0, 0  # metrics and events so far; written by the run's thread
        self._written, self._delivered = 0, 0  # those that the sink has taken; written by the sink's thread
        self._late = False  # whether the sink now gets only events; written by the run's thread
        self._given_up = False  # written by both threads
        self._ended = False

    @property
    def lost(self) -> int:
        """The number of metrics that the sink has not taken, queued ones included."""
        return self._offered - self._written

    def record(self, metric: Metric) -> None:
        """Queues a metric, or drops it if the queue is full, the sink failed or it was closed."""
        self._offered += 1
        if self._queue.qsize() < self._capacity:
            self._put(metric)

    def announce(self, event: Event) -> None:
        """Queues an event, unless the sink failed or was closed."""
        self._announced += 1
        self._put(event)

    def flush(self) -> None:
        """Asks the sink to flush after the queued metrics."""
        if self._thread is not None and self._queue.qsize() < self._capacity:
            self._put("flush")

    def end(self) -> None:
        """Asks the sink to take the queued metrics and to close; returns at once. Later metrics are lost."""
        if not self._ended:
            self._ended = True
            self._queue.put("end")

    def close(self, timeout: float = CLOSE_S) -> None:
        """Ends the sink; waits at most `timeout` seconds and, if events are still queued, CLOSE_S more for the events.

        Metrics that are still queued after `timeout` are lost. A sink that does not end in time is logged and left.
        """
        self.end()
        if self._thread is None:
            return
        self._thread.join(timeout)
        if self._thread.is_alive() and self._delivered < self._announced:
            self._late = True
            self._thread.join(CLOSE_S)
        if self._thread.is_alive() and not self._given_up:
            self._given_up = True  # if its thread wakes up, it only closes the sink
            log.warning("metrics: the sink %s did not close in time; the run ended without it", self.name)

    def wait(self, enough: Callable[[], bool]) -> None:
        """Waits until the closed sink's thread has ended or `enough` returns True."""
        while self._thread is not None and self._thread.is_alive() and not enough():
            self._thread.join(LOOK_S)

    def _put(self, request: Metric | Event | Literal["flush"]) -> None:
        if not self._given_up and not self._ended:
            if self._thread is None:
                self._start()
            self._queue.put(request)

    def _start(self) -> None:
        # A daemon, so that a sink that hangs does not keep the interpreter from exiting
        self._thread = threading.Thread(target=self._work, name=f"marlcore-sink-{self.name}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # the system cannot start a thread
            self._thread = None
            self._fail(error)

    def _work(self) -> None:
        with self._reporting():
            sink = self._make()
            announce: Callable[[Event], object] | None = getattr(sink, "announce", None)
            with self._reporting():
                while not self._given_up and (item := self._queue.get()) != "end":
                    if item == "flush":
                        sink.flush()
                    elif not isinstance(item, Metric):
                        if announce is not None:
                            announce(item)
                        self._delivered += 1
                    elif not self._late:
                        sink.record(item)
                        self._written += 1
            sink.close()

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:  # a function of the user may raise anything
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        if self._given_up:
            return
        self._given_up = True
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        log.warning("metrics: the sink %s failed and gets no more metrics: %s%s", self.name, reason, place)


class Sinks:
    """Passes metrics to metrics.csv (which the run's directory closes) and to the other sinks."""

    def __init__(self, csv: CsvSink, others: list[Background]) -> None:
        self._others = others
        self._all: list[CsvSink | Background] = [csv, *others]
        self._closed = False

    def record(self, metric: Metric) -> None:
        """Passes a metric to all sinks. Raises OSError if metrics.csv could not be written."""
        for sink in self._all:
            sink.record(metric)

    def announce(self, event: Event) -> None:
        """Queues an event for all sinks except metrics.csv, after the metric that completes it."""
        for sink in self._others:
            sink.announce(event)

    def flush(self) -> None:
        """Flushes metrics.csv at once, and asks the other sinks to flush."""
        for sink in self._all:
            sink.flush()

    def close(self, timeout: float = CLOSE_S) -> None:
        """Closes every `Background`, with one `timeout` for all, and logs lost metrics. A second call does nothing."""
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

    def await_callback(self, enough: Callable[[], bool]) -> None:
        """Waits, after `close`, until the callback's last call has ended or `enough` returns True."""
        for sink in self._others:
            if sink.name == CALLBACK:
                sink.wait(enough)

    @property
    def lost(self) -> dict[str, int]:
        """The number of metrics that each sink has not taken. metrics.csv has all of them."""
        return {sink.name: sink.lost for sink in self._others}


def open_sinks(
    csv: CsvSink, run_dir: Path, config: MetricsConfig, make_callback: Callable[[], Sink] | None = None
) -> Sinks:
    """Returns the configured sinks and the callback's sink; all except metrics.csv are made at the first metric.

    Raises ValueError if a sink cannot be used.
    """
    others = [Background(name, _maker(name, run_dir, config)) for name in config.sinks if name != "csv"]
    if make_callback is not None:
        others.append(Background(CALLBACK, make_callback))
    return Sinks(csv, others)


def _maker(name: str, run_dir: Path, config: MetricsConfig) -> Callable[[], Sink]:
    if name == "tensorboard":
        return partial(TensorBoardSink, run_dir)
    if name == "wandb":
        check_wandb(config.wandb_mode)
        return partial(WandbSink, run_dir, config.wandb_project, config.wandb_mode)
    sink: Any = resolve("metrics.sinks", name)
    if not callable(sink):
        raise ValueError(f"metrics.sinks: expected module:Class, got {name!r}, which is not a class")
    return partial(sink, run_dir)
