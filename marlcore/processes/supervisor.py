"""Supervision: the supervisor restarts workers that die, kills workers that hang, and ends the run on repeated failure.

Only the kernel tells that a process is dead; the supervisor never guesses. It starts a successor only after the old
process is gone, so that its lanes and weights are free. A worker hangs when its heartbeat, a counter in the control
block, does not change for its timeout; then the supervisor kills it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import MarlcoreError, WorkerFailed
from .control import BEATS, EPISODES, PID, READY, RESTARTS, Control
from .worker import Failure, WorkerProcess, wait_any

LONGEST_BACKOFF_S = 30.0
START_S = 120.0  # smallest timeout of a start, which imports, compiles and waits for the first weights
LONGEST_LOOK_S = 1.0  # counted between two looks: a parent that was itself stopped saw no heartbeats meanwhile

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RestartPolicy:
    """How often and how soon the supervisor restarts a failed worker.

    Attributes:
        max_restarts: restarts within the window; the next failure makes the supervisor raise.
        window: seconds for which a failure counts.
        backoff: seconds before the first restart, doubled before each further one in the window; at most 30.
    """

    max_restarts: int = 3
    window: float = 600.0
    backoff: float = 0.5


Start = Callable[[str, int], WorkerProcess]  # called with a worker's name and the number of its process, from 1


class Supervisor:
    """The workers of a run, each in its own process.

    Args:
        control: the block with the workers' heartbeats.
        start: starts a worker's process.
        timeouts: by worker, seconds without a heartbeat after which it is killed.
        policy: how often and how soon a worker is restarted.

    Attributes:
        workers: by name, each with its current process.
    """

    def __init__(self, control: Control, start: Start, timeouts: Mapping[str, float], policy: RestartPolicy) -> None:
        self.workers = {name: Supervised(name, control, start, limit, policy) for name, limit in timeouts.items()}

    def watch(self, seconds: float) -> None:
        """Sleeps until a process ends or the timeout, then handles workers that died or hang.

        Raises: WorkerFailed: a worker failed more often than the run allows.
        """
        wait_any([worker.process for worker in self.workers.values() if worker.process], seconds)
        now = time.monotonic()
        for worker in self.workers.values():
            worker.look(now)

    @property
    def running(self) -> list[Supervised]:
        """The workers that have a process."""
        return [worker for worker in self.workers.values() if worker.process]

    @property
    def unfinished(self) -> list[Supervised]:
        """The workers that have a process or await a restart."""
        return [worker for worker in self.workers.values() if worker.process or worker.due]

    def stand_down(self) -> None:
        """From now on, restarts no worker."""
        for worker in self.workers.values():
            worker.stand_down()

    def close(self) -> None:
        """Kills every process that still runs."""
        for process in [worker.process for worker in self.running if worker.process]:
            process.kill()  # kill all before waiting for the first
        for worker in self.running:
            worker.end()


class Supervised:
    """One worker: its current process, and how its earlier ones ended.

    Attributes:
        name: the worker's name.
        process: None before the first process, between two, and after the last.
        attempts: processes started so far.
        done: whether a process ended well.
        due: the time of the next restart, or None.
    """

    def __init__(self, name: str, control: Control, start: Start, timeout: float, policy: RestartPolicy) -> None:
        self.name = name
        self.process: WorkerProcess | None = None
        self.attempts = 0
        self.done = False
        self._start = start
        self._timeout = timeout
        self._policy = policy
        self._counters = control.workers[name]
        self._notes = control.notes[name]
        self._failures: list[tuple[float, Failure]] = []  # those in the window, each with its time
        self.due: float | None = None
        self._stands_down = False
        self._hang: Failure | None = None
        self._beats, self._looked, self._silent = 0, 0.0, 0.0

    def start(self) -> None:
        """Starts the worker's next process. Raises OSError, MarlcoreError: see `ForkServer.fork`."""
        self.attempts += 1
        self.due = self._hang = None
        self.process = self._start(self.name, self.attempts)
        self._notes.store(PID, self.process.pid)
        self._notes.store(RESTARTS, self.attempts - 1)
        self._beats, self._looked, self._silent = self._counters.load(BEATS), time.monotonic(), 0.0

    @property
    def ready(self) -> bool:
        """Whether its process has reached its first step."""
        return self._counters.load(READY) == self.attempts

    @property
    def failure(self) -> WorkerFailed | None:
        """All failures in the window as one error; None without any."""
        if not self._failures:
            return None
        texts = [failure.text for _, failure in self._failures]
        if len(texts) > 1:
            first = self.attempts - len(texts) + 1
            texts = [
                f"start {first + i}: {'the same' if i and text == texts[i - 1] else text}"
                for i, text in enumerate(texts)
            ]
        return WorkerFailed(self.name, self._failures[-1][1].reason, "\n".join(texts))

    def look(self, now: float) -> None:
        """Handles the worker's death, hang or due restart.

        Raises: WorkerFailed: it failed more often than the run allows.
        """
        if self.process is None:
            self._start_if_due(now)
        elif self.process.running:
            self._check_heartbeat(now)
        else:
            self._take_note(self.process, now)

    def _start_if_due(self, now: float) -> None:
        if self.due is None or now < self.due:
            return
        try:
            self.start()
        except (OSError, MarlcoreError) as error:
            if isinstance(error, OSError) and error.errno is None:  # a signal handler's
                raise
            self._failed(Failure("death", f"no process could be started: {error}"), time.monotonic())

    def stand_down(self) -> None:
        """From now on, never restarts the worker."""
        self.due, self._stands_down = None, True

    def end(self) -> None:
        """Kills its process, if it has one."""
        if self.process is not None:
            self.process.close()
            self.process = None
            self._notes.store(PID, 0)

    def _check_heartbeat(self, now: float) -> None:
        assert self.process is not None
        beats = self._counters.load(BEATS)
        self._silent = 0.0 if beats != self._beats else self._silent + min(now - self._looked, LONGEST_LOOK_S)
        self._beats, self._looked = beats, now
        limit = self._timeout if self.ready else max(self._timeout, START_S)
        if self._silent > limit and self._hang is None:
            self._hang = Failure("hang", f"it showed no sign of life for {limit:g} s, and was killed")
            self.process.kill()

    def _take_note(self, process: WorkerProcess, now: float) -> None:
        """Records how a process ended."""
        failure = process.failure()
        self.end()
        if failure is None:
            self.done = True
        elif self._hang is None:
            self._failed(failure, now)
        else:  # it may have raised just before it was killed
            self._failed(Failure(self._hang.reason, f"{failure.text}\n{self._hang.text}"), now)

    def _failed(self, failure: Failure, now: float) -> None:
        """Schedules a restart, or raises if a restart cannot help."""
        recent = [(at, one) for at, one in self._failures if now - at <= self._policy.window]
        self._failures = [*recent, (now, failure)]
        if self._stands_down:
            return
        if len(recent) >= self._policy.max_restarts or self._will_fail_again:
            assert self.failure is not None
            raise self.failure
        delay = min(self._policy.backoff * 2 ** len(recent), LONGEST_BACKOFF_S)
        self.due = now + delay
        log.warning("%s failed and is started again in %.3g s: %s", self.name, delay, failure.text.splitlines()[-1])

    @property
    def _will_fail_again(self) -> bool:
        """Whether it diverged, raised before its first step, or its environment raised twice before any episode ended.

        The second failure in a row tells a persistent fault of the environment from a chance one.
        """
        reasons = [failure.reason for _, failure in self._failures[-2:]]
        if reasons[-1] == "diverged":
            return True
        if reasons[-1] in ("environment", "worker") and not self._counters.load(READY):
            return True
        return reasons == ["environment", "environment"] and not self._counters.load(EPISODES)
