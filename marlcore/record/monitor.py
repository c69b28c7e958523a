"""The parent's monitor: records and shows a run's metrics, keeps its status, and saves its progress."""

import os
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from ..config import EVALUATOR
from ..errors import suppress_failed_calls
from ..processes import EPISODES, PID, READY, RESTARTS, SKIPS, STEPS, UPDATES, Control, Interrupts, Metric, Telemetry
from .events import Events
from .progress import EPISODES_PER_S, LateReturns, Table
from .run_directory import RunDirectory
from .sinks import Sinks
from .stop_conditions import StopConditions

SAVE_S = 5.0  # seconds between saves of the run's progress
RATE_S = 1.0  # seconds between measurements of the rate, and between flushes of the sinks
RATES = 10  # number of intervals in the rate's mean: actors of a slow on-policy learner pause for seconds
MEMORY_S = 5.0  # seconds between measurements of the processes' memory
TICK_S = 0.25  # seconds between ticks of a serial run


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes:
        running: True until the run has ended.
        steps, total_steps: the steps that all agents together have taken, and will have taken at the end.
        seconds: time since the run's beginning, including earlier parts of a resumed run.
        updates: by policy, the updates of its learner.
        returns: by agent, the mean return of the episodes that ended in the last tenth of the steps so far or, without
            such episodes, of the last tenth of the agent's episodes, at least one; an agent without any is missing.
            Unlike in `Result.returns`, earlier parts of a resumed run do not count.
        restarts: by worker, its restarts.
        metrics: the newest value of each metric, by (agent or policy, name).
    """

    running: bool
    steps: int
    total_steps: int
    seconds: float
    updates: dict[str, int]
    returns: dict[str, float]
    restarts: dict[str, int]
    metrics: dict[tuple[str, str], float]


@dataclass(eq=False)
class Monitor:
    """Moves metrics from shared memory to their sinks and the screen, and saves the run's progress.

    When a metric meets a stop condition, the monitor ends the run through `interrupts`.
    """

    directory: RunDirectory
    sinks: Sinks
    control: Control
    telemetry: Telemetry
    table: Table | None
    total_steps: int
    began: float
    interrupts: Interrupts = field(default_factory=Interrupts)
    conditions: StopConditions | None = None

    def __post_init__(self) -> None:
        now = monotonic() - self.began
        self._episodes: dict[str, int] = {}  # by actor, the episodes that its present process ended
        self._ended = 0  # episodes that ended since this monitor began
        self._counted = deque([(now, self.control.steps, 0)], maxlen=RATES)  # (seconds, steps, episodes)
        self._rate = 0.0
        self.due_at = self.began + now + TICK_S  # by `monotonic`: when serial runs, whose rounds may take long, tick
        self._saved_at = self._memory_at = -max(SAVE_S, MEMORY_S)
        self._events = Events(self.directory.path)
        self._newest: dict[tuple[str, str], float] = {}
        self._returns: dict[str, LateReturns] = {}
        self._means: dict[str, float] = {}  # mean returns; computed only once a second, since long runs have many
        self.status = self._status_at(now)

    def tick(self, last: bool = False) -> None:
        """Records new metrics; at intervals and at the last tick, measures rates, flushes sinks and saves progress."""
        for metric in self.telemetry.tail():
            self._record(metric)
        steps, now = self.control.steps, monotonic() - self.began
        self.due_at = self.began + now + TICK_S
        learners = self.control.about.get("learners", ())
        if steps and all(self.control.workers[learner].load(READY) for learner in learners):
            self.directory.keep()  # a run that fails before all learners have begun leaves no directory
        measured = now - self._counted[-1][0] >= RATE_S or (last and steps != self._counted[-1][1])
        if measured:
            self._measure(now, steps)
            self.sinks.flush()
        if measured or last or self._means.keys() != self._returns.keys():  # an agent's first episode has ended
            self._means = {agent: late.mean(steps) for agent, late in self._returns.items()}
        if last or now - self._saved_at > SAVE_S:
            self._save(now)
        if self.table is not None:
            self.table.tick(steps, self.total_steps, self._rate)
        self.status = self._status_at(now)

    def _measure(self, now: float, steps: int) -> None:
        """Records the rates over the last `RATES` measurements or, if there are fewer, since the first step."""
        for actor in self.control.about.get("actors", ()):
            count, last = self.control.workers[actor].load(EPISODES), self._episodes.get(actor, 0)
            self._ended += count - last if count >= last else count  # a restarted actor's count begins at 0
            self._episodes[actor] = count
        if steps == self._counted[0][1] and len(self._counted) == 1:
            self._counted.clear()  # workers are starting
        else:
            begin, first_steps, ended = self._counted[0]
            seconds = max(now - begin, 1e-9)
            self._rate = (steps - first_steps) / seconds
            self._record(Metric(now, steps, "", "env_steps_per_s", self._rate))
            if self._ended:
                self._record(Metric(now, steps, "", EPISODES_PER_S, (self._ended - ended) / seconds))
            if now - self._memory_at >= MEMORY_S:
                self._measure_memory(now, steps)
        self._counted.append((now, steps, self._ended))

    def _measure_memory(self, now: float, steps: int) -> None:
        self._memory_at = now
        pids = {name: notes.load(PID) for name, notes in self.control.notes.items()}
        workers = {name: pid for name, pid in pids.items() if pid not in (0, os.getpid())}  # own pid: in serial mode
        for name, pid in {"parent": os.getpid(), **workers}.items():
            with suppress_failed_calls():  # it has just ended, or /proc is not mounted
                pages = int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
                mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
                self._record(Metric(now, steps, "", f"rss_mib/{name}", mib))

    def _status_at(self, now: float) -> Status:
        return Status(
            True,
            self.control.steps,
            self.total_steps,
            now,
            {policy: tally.load(UPDATES) for policy, tally in self.control.tallies.items()},
            self._means,
            {name: notes.load(RESTARTS) for name, notes in self.control.notes.items()},
            dict(self._newest),
        )

    def say(self, text: str) -> None:
        """Prints a line where progress is shown."""
        if self.table is not None:
            self.table.say(text)

    def say_stopping(self) -> None:
        """Prints that the run is stopping and, unless a signal stops it, why."""
        reason = self.interrupts.reason
        self.say(f"stopping: {f'{reason}; ' if reason else ''}writing checkpoints ...")

    def _save(self, now: float) -> None:
        self._saved_at = now
        steps = {name: counters.load(STEPS) for name, counters in self.control.workers.items()}
        skips, evaluated = 0, sum(steps.values())  # without an evaluator, no evaluation is due so far
        if evaluator := self.control.workers.get(EVALUATOR):
            skips, evaluated = evaluator.load(SKIPS), evaluator.load(UPDATES)
        self.directory.save_progress({"time_s": now, "steps": steps, "skips": skips, "evaluated": evaluated})
        self.sinks.flush()

    def _record(self, metric: Metric) -> None:
        self.sinks.record(metric)
        self._newest[metric.agent, metric.name] = metric.value
        if event := self._events.take(metric):
            self.sinks.announce(event)
        if self.conditions is not None and (stop := self.conditions.take(metric, event)):
            self.interrupts.finish(stop.reason)
        if metric.name == "episode_return":
            self._returns.setdefault(metric.agent, LateReturns(self.total_steps)).add(metric)
        if self.table is not None:
            self.table.update(metric)
