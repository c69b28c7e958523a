"""Sends metrics from workers to their parent: each worker writes a lane, and the parent reads all lanes."""

import errno
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any

import numpy as np

from ..checks import brief
from ..memory import LaneGeometry, Segment, Shared, claim, described_workers

ROWS = 4096
AT_ONCE = 64  # rows that one call writes
NAME_BYTES = 64
_NAME = f"S{NAME_BYTES}"
_ROW = np.dtype([("time_s", "f8"), ("step", "i8"), ("value", "f8"), ("agent", _NAME), ("name", _NAME)])


@dataclass(frozen=True, slots=True)
class Metric:
    """A measurement: seconds since the run began, steps so far, agent ("" for the run), name and value."""

    time_s: float
    step: int
    agent: str
    name: str
    value: float


class Telemetry(Shared):
    """The lanes of metrics, one for each worker; `lost` counts metrics overwritten before the parent read them."""

    kind = "telemetry lane"

    def _understand(self, segment: Segment) -> None:
        self._workers = described_workers(segment)
        self._lanes = _geometry(self._workers).bind(segment.body)
        self._read = [0] * len(self._workers)
        self.lost = 0

    @classmethod
    def create(cls, workers: list[str]) -> "Telemetry":
        description = {"kind": cls.kind, "workers": workers}
        return cls(Segment.create("telemetry", description, _geometry(workers).nbytes))

    def reporter(self, worker: str) -> "Reporter":
        """Returns the writing end of a worker's lane. Raises LaneBusy if the lane has a living writer."""
        return Reporter(self, self._workers.index(worker))

    @property
    def positions(self) -> tuple[int, ...]:
        """For each lane, the number of metrics read or lost so far, from which `read_from` continues."""
        return tuple(self._read)

    def read_from(self, positions: Sequence[int]) -> None:
        """Makes `tail` continue where another reader of this telemetry stopped, at that reader's `positions`."""
        self._read = [int(position) for position in positions]

    def tail(self) -> list[Metric]:
        """Returns the metrics reported since the last call, in order of time."""
        metrics = chain.from_iterable(map(self._tail_lane, range(len(self._workers))))
        return sorted(metrics, key=lambda metric: metric.time_s)

    def _tail_lane(self, lane: int) -> list[Metric]:
        end = self._lanes.committed(lane)
        while self._read[lane] < end:
            # Read fewer rows than the capacity: the writer may be overwriting the oldest, or have died doing so.
            oldest = max(self._read[lane], end - (ROWS - AT_ONCE))
            rows: Any = np.zeros(end - oldest, _ROW)
            code = self._lanes.read(lane, oldest, len(rows), rows.view(np.uint8))
            if code == -errno.ESTALE:  # the worker overwrote rows meanwhile: read newer ones
                newer = self._lanes.committed(lane)
                if newer == end:
                    break  # only with damaged counters; otherwise the next call reads more
                end = newer
                continue
            self.lost += oldest - self._read[lane]
            self._read[lane] = end
            return [
                Metric(time_s, step, agent.decode(errors="replace"), name.decode(errors="replace"), value)
                for time_s, step, value, agent, name in rows.tolist()
            ]
        return []


def _geometry(workers: list[str]) -> LaneGeometry:
    return LaneGeometry(len(workers), ROWS, (_ROW.itemsize,))


@lru_cache(1024)
def encoded_name(label: str, name: str) -> bytes:
    """Encodes a name in UTF-8. Raises ValueError if it is longer than 64 bytes or has a lone surrogate."""
    encoded = name.encode(errors="surrogatepass")
    if len(encoded) > NAME_BYTES or encoded != name.encode(errors="replace"):
        raise ValueError(f"{label}: expected at most {NAME_BYTES} bytes of UTF-8, got {brief(name)}")
    return encoded


@lru_cache(1024)
def fitting_name(name: str) -> str:
    """Returns the name cut to 64 bytes of UTF-8, with "?" for lone surrogates."""
    return name.encode(errors="replace")[:NAME_BYTES].decode(errors="ignore")


class Reporter:
    """Reports one worker's metrics; it never waits for the parent."""

    def __init__(self, telemetry: Telemetry, lane: int) -> None:
        self._claim = claim(telemetry._segment, telemetry._lanes, lane)
        self._rows = np.zeros(AT_ONCE, _ROW)
        self._lock = threading.RLock()  # a worker may report from several threads
        self._append = telemetry._lanes.appender(lane, self._rows)

    def report(self, metric: Metric) -> None:
        """Writes a metric to the lane. Raises the errors of `encoded_name`."""
        self.report_each(metric.time_s, metric.step, metric.agent, metric.name, [metric.value])

    def report_each(self, time_s: float, step: int, agent: str, name: str, values: Sequence[float]) -> None:
        """Writes a metric for each of the values. Raises the errors of `encoded_name`."""
        names = encoded_name("agent", agent), encoded_name("name", name)
        with self._lock:
            self._write(time_s, step, names, values)

    def _write(self, time_s: float, step: int, names: tuple[bytes, bytes], values: Sequence[float]) -> None:
        for first in range(0, len(values), AT_ONCE):
            part = values[first : first + AT_ONCE]
            for i, value in enumerate(part):
                self._rows[i] = time_s, step, value, *names
            self._append(len(part))

    def close(self) -> None:
        self._claim.close()
