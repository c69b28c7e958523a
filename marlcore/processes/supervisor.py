"""Restarts workers that die, kills workers that hang, and ends the run on repeated failure.

A worker is restarted only once the kernel says that its last process is dead, which frees its lanes and weights. A
worker hangs if its heartbeat, a counter in the control block, does not change within its timeout. It is then asked for
its stacks, and killed `STACKS_S` seconds later.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from ..errors import MarlcoreError, WorkerFailed
from .children import Child, Children
from .control import BEATS, EPISODES, PID, READY, RESTARTS, STEPS, UPDATES, Control

LONGEST_BACKOFF_S = 30.0
START_S = 120.0  # least timeout of a starting worker, which imports, compiles and waits for the first weights
STACKS_S = 1.0  # seconds that a worker that hangs gets to write its stacks
LONGEST_LOOK_S = 1.0  # most silence counted between two looks: a parent that was itself stopped saw no heartbeats

Start = Callable[[str, int], Child]  # called with a worker's name and the number of its process, from 1
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestartPolicy:
    """How often and how soon the supervisor restarts a failed worker."""

    max_restarts: int = 3  # within the window; the next failure makes the supervisor raise
    window: float = 600.0  # seconds for which a failure counts
    backoff: float = 0.5  # seconds before the first restart, doubled before each further one in the window; at most 30


class Supervisor:
    """Watches a run's workers. `start` starts their processes; `timeouts` are the longest silences, in seconds."""

    def __init__(
        self, children: Children, control: Control, start: Start, timeouts: Mapping[str, float], policy: RestartPolicy
    ) -> None:
        self._children = children
        self.workers = {
            name: Supervised(name, children, control, start, timeout, policy) for name, timeout in timeouts.items()
        }

    def watch(self, seconds: float) -> None:
        """Sleeps until a process ends, at most `seconds`, then calls each worker's `look`."""
        self._children.wait(seconds)
        now = time.monotonic()
        for worker in self.workers.values():
            worker.look(now)

    @property
    def running(self) -> "list[Supervised]":
        return [worker for worker in self.workers.values() if worker.process]

    @property
    def unfinished(self) -> "list[Supervised]":
        """The workers that have a process or await a restart."""
        return [worker for worker in self.workers.values() if worker.process or worker.due]

    def stand_down(self) -> None:
        for worker in self.workers.values():
            worker.due, worker.stands_down = None, True


class Supervised:
    """One worker: its current process, and the failures of its earlier processes."""

    def __init__(
        self, name: str, children: Children, control: Control, start: Start, timeout: float, policy: RestartPolicy
    ) -> None:
        self.name = name
        self.process: Child | None = None  # None before the first process, between two, and after the last
        self.attempts = 0  # number of processes started
        self.due: float | None = None  # the time of the next restart
        self.done = False  # whether the last process succeeded
        self.stands_down = False  # whether it is never restarted again
        self.timeout = timeout  # the longest silence, in seconds
        self._children, self._start, self._policy = children, start, policy
        self._counters, self._notes = control.workers[name], control.notes[name]
        self._failures: list[tuple[float, int, WorkerFailed]] = []  # in the window: (time, steps + updates, failure)
        self._hang = ""  # why its process is killed, in words
        self._kill_at: float | None = None
        self._beats, self._looked, self._silent = 0, 0.0, 0.0

    def start(self) -> None:
        """Starts the worker's next process; if the fork server keeps dying, that counts as a death of the worker.

        Raises OSError if the first process does not start, WorkerFailed if the run allows no further start.
        """
        self.attempts += 1
        self.due, self._hang, self._kill_at = None, "", None
        try:
            self.process = self._start(self.name, self.attempts)
        except (MarlcoreError, OSError) as error:
            if not isinstance(error, MarlcoreError) and (self.attempts == 1 or error.errno is None):
                raise  # it is the first start, or a signal handler raised the error
            self._failed("death", f"no process could be started: {error}", time.monotonic())
            return
        self._notes.store(PID, self.process.pid)
        self._notes.store(RESTARTS, self.attempts - 1)
        self._beats, self._looked, self._silent = self._counters.load(BEATS), time.monotonic(), 0.0

    def resume(self) -> None:
        """Starts the worker again at the next look, after it was done."""
        if not self.stands_down:
            self.done, self.due = False, time.monotonic()

    def end(self) -> None:
        if self.process is not None:
            self._children.end(self.process)
            self.process = None
            self._notes.store(PID, 0)

    @property
    def ready(self) -> bool:
        """Whether the worker's process has reached its first step."""
        return self._counters.load(READY) == self.attempts

    @property
    def failure(self) -> WorkerFailed:
        """All failures within the restart policy's window as one error."""
        texts = [failure.traceback for *_, failure in self._failures]
        if len(texts) > 1:
            starts = range(self.attempts - len(texts) + 1, self.attempts + 1)
            brief = [texts[0], *("the same" if text == last else text for last, text in pairwise(texts))]
            texts = [f"start {start}: {text}" for start, text in zip(starts, brief, strict=True)]
        return WorkerFailed(self.name, self._failures[-1][-1].reason, "\n".join(texts))

    def look(self, now: float) -> None:
        """Handles a death, a hang or a due restart. Raises WorkerFailed if the run allows no restart."""
        if self.process is None:
            if self.due is not None and now >= self.due:
                self.start()
        elif self.process.running:
            self._check_heartbeat(self.process, now)
        else:
            self._take_note(self.process, now)

    def _check_heartbeat(self, process: Child, now: float) -> None:
        beats = self._counters.load(BEATS)
        self._silent = 0.0 if beats != self._beats else self._silent + min(now - self._looked, LONGEST_LOOK_S)
        self._beats, self._looked = beats, now
        limit = self.timeout if self.ready else max(self.timeout, START_S)
        if self._silent > limit and not self._hang:
            self._hang = f"it showed no sign of life for {limit:g} s, and was killed"
            self._kill_at = now + STACKS_S
            process.ask_for_stacks()
        elif self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            process.kill()

    def _take_note(self, process: Child, now: float) -> None:
        failure = process.failure()
        self.end()
        if failure is None:
            self.done = True
        elif self._hang:  # the failure may be an exception raised just before the kill
            self._failed("hang", f"{failure.traceback}\n{self._hang}", now)
        else:
            self._failed(failure.reason, failure.traceback, now)

    def _failed(self, reason: str, text: str, now: float) -> None:
        recent = [failed for failed in self._failures if now - failed[0] <= self._policy.window]
        done = sum(self._counters.load(count) for count in (STEPS, UPDATES))
        self._failures = [*recent, (now, done, WorkerFailed(self.name, reason, text))]
        if self.stands_down:
            return
        if len(recent) >= self._policy.max_restarts or self._will_fail_again:
            raise self.failure
        delay = min(self._policy.backoff * 2 ** len(recent), LONGEST_BACKOFF_S)
        self.due = now + delay
        log.warning("%s failed and is started again in %.3g s: %s", self.name, delay, text.splitlines()[-1])

    @property
    def _will_fail_again(self) -> bool:
        """Whether a restart cannot help.

        The worker diverged, is deadlocked, or raised before its first step; it raised the same error twice without a
        step or an update in between; or its environment raised twice before an episode ended.
        """
        last = [(failure.reason, failure.traceback, done) for _, done, failure in self._failures[-2:]]
        reasons = [reason for reason, *_ in last]
        if reasons[-1] in ("diverged", "deadlock"):
            return True
        if reasons[-1] in ("environment", "worker") and (not self._counters.load(READY) or last.count(last[-1]) == 2):
            return True
        return reasons == ["environment", "environment"] and not self._counters.load(EPISODES)
