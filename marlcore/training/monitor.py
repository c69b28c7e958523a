"""The parent's monitor: it records and shows a run's metrics, and saves the run's progress."""

from __future__ import annotations

import time

from ..processes import STEPS, Control, Metric, Telemetry
from .progress import Progress
from .run_directory import RunDirectory

__all__ = ["Monitor"]

NOTE_S = 5.0  # between saves of the run's progress
RATE_ROWS = 200  # rows of env_steps_per_s in a run


class Monitor:
    """Moves metrics from shared memory to the run directory and the screen, and saves the run's progress."""

    def __init__(
        self,
        run: RunDirectory,
        control: Control,
        telemetry: Telemetry,
        table: Progress | None,
        total_steps: int,
        began: float,
    ) -> None:
        self._run = run
        self._control = control
        self._telemetry = telemetry
        self._table = table
        self._total = total_steps
        self._began = began
        self._rate_every = max(total_steps // RATE_ROWS, 1)
        self._rate_from = (time.monotonic() - began, control.steps)
        self._rate = 0.0
        self._noted = -NOTE_S

    def tick(self) -> None:
        for metric in self._telemetry.tail():
            self._record(metric)
        steps, now = self._control.steps, time.monotonic() - self._began
        if steps:
            self._run.keep()
        since, before = self._rate_from
        if before // self._rate_every != steps // self._rate_every:
            self._rate = (steps - before) / max(now - since, 1e-9)
            self._rate_from = (now, steps)
            self._record(Metric(now, steps, "", "env_steps_per_s", self._rate))
            self._run.flush()
        if now - self._noted > NOTE_S:
            self._note(now)
        if self._table is not None:
            self._table.tick(steps, self._total, self._rate)

    def say(self, text: str) -> None:
        """Prints a line where progress is shown."""
        if self._table is not None:
            self._table.say(text)

    def finish(self) -> None:
        """Makes the last tick, and saves the progress."""
        self.tick()
        self._note(time.monotonic() - self._began)

    def _note(self, now: float) -> None:
        """Saves the progress, from which the run can be resumed."""
        self._noted = now
        steps = {name: counters.load(STEPS) for name, counters in self._control.workers.items()}
        self._run.save_progress({"time_s": now, "steps": steps})
        self._run.flush()

    def _record(self, metric: Metric) -> None:
        self._run.record(metric)
        if self._table is not None:
            self._table.update(metric)
