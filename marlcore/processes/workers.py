"""Worker processes for programs with their own loop: they start and stop together, and die with their parent."""

import atexit
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from types import TracebackType
from typing import Any, Concatenate, ParamSpec

from ..checks import brief, deadline_of
from ..closing import ClosedAfterError
from ..errors import ClosedError, StaleHandle, WorkerFailed
from ..fixed import fixed
from ..memory import interrupt_waits_with
from .children import PRELOAD, Child, Children
from .control import Control
from .pickling import check_picklable
from .signals import STOPPING, Interrupts, Postponed, raise_for
from .telemetry import Metric, Telemetry, encoded_name

LOOK_S = 0.1
P = ParamSpec("P")
log = logging.getLogger(__name__)


class _OpenGroups:
    """What open groups, which end in any order, share: what every wait calls, and handlers of the stop signals.

    Each wait calls this object: it makes the check from before the first group, and each group's.
    """

    def __init__(self) -> None:
        self._checks: list[Callable[[], None]] = []
        self._before: Callable[[], None] | None = None
        self._handlers: dict[int, Any] = {}  # by signal, the one before the first group

    def add(self, check: Callable[[], None]) -> None:
        self._checks.append(check)
        before = interrupt_waits_with(self)
        self._before = self._before if before is self else before
        if threading.current_thread() is threading.main_thread():
            for signum in STOPPING:
                if signal.getsignal(signum) is signal.SIG_DFL:
                    self._handlers[signum] = signal.signal(signum, raise_for)

    def remove(self, check: Callable[[], None]) -> None:
        self._checks.remove(check)
        if self._checks:
            return
        interrupt_waits_with(self._before)
        if threading.current_thread() is threading.main_thread():
            while self._handlers:
                signal.signal(*self._handlers.popitem())

    def __call__(self) -> None:
        for check in (self._before, *self._checks):
            if check is not None:
                check()


_open_groups = _OpenGroups()


@fixed()
class WorkerContext:
    """The first argument of a worker's function; its `name` is the worker's."""

    def __init__(self, name: str, control: Control, telemetry: Telemetry, began: float) -> None:
        self.name = name
        self._control = control
        self._reporter = telemetry.reporter(name)
        self._began = began

    @property
    def stopping(self) -> bool:
        """Whether the worker must end; check it in each iteration of the worker's loop."""
        return self._control.stopping

    def report(self, name: str, value: float, step: int = 0) -> None:
        """Sends a number to the parent, which reads it with `Workers.reports`; never waits.

        Args:
            name: the number's name, at most 64 bytes.
            step: the worker's progress, if useful.
        """
        self._reporter.report(Metric(time.monotonic() - self._began, step, self.name, name, float(value)))

    def check_waits(self) -> None:
        """Raises ClosedError if the worker must end."""
        if self.stopping:
            raise ClosedError(f"{self.name}: the workers are stopping")


class Worker:
    """One process of a group: its `name`, and its process id `pid`."""

    def __init__(self, child: Child, group: "Workers") -> None:
        self.name, self.pid = child.name, child.pid
        self._child, self._group = child, group

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._child.running

    def kill(self) -> None:
        """Kills the process; this does not count as a failure."""
        with self._group._lock:
            self._group._children.end(self._child)

    def __repr__(self) -> str:
        return f"<Worker {self.name}, process {self.pid}>"


@fixed()
class Workers:
    """Functions that run in their own processes for the duration of a block.

        with mc.Workers() as workers:
            workers.start(actor, replay, lane)  # actor(context, replay, lane) runs in a new process
            ...

    Without a block, the first `start` begins the group, and `close` or the interpreter's exit ends it like a block.

    - **End.** When the block ends, for any reason, `context.stopping` becomes True in every worker; a worker that has
      not returned `grace` seconds later is killed. In the main thread SIGTERM and SIGHUP end the block by SystemExit,
      as SIGINT does by KeyboardInterrupt, unless the program handles or ignores them. If this process dies for any
      reason, the kernel kills the workers.
    - **Waits.** Once the workers are stopping, a wait of marlcore in a worker (`add`, `sample`, `read`, `wait`) raises
      ClosedError. A function that ends by this error counts as successful.
    - **Failures.** If a worker raised or died, this process raises WorkerFailed with its traceback, once: in the next
      `start`, `check` or `wait`, in any wait of marlcore, or at the block's end unless the block raised another
      exception. Workers are never restarted.
    - **Signals.** SIGINT, SIGTERM and SIGHUP do nothing in a worker; programs that it starts have the default actions,
      and may survive a worker that is killed.

    A worker's function and arguments are pickled by value where needed, so lambdas, closures and definitions of a
    script or a notebook work. Replays, stores and queues among them attach to the same memory. torch uses one thread in
    a worker, unless the worker's function sets another number of threads.
    """

    def __init__(self, *, grace: float = 10.0, preload: Sequence[str] = PRELOAD) -> None:
        """Makes a group.

        Args:
            grace: seconds between telling the workers to stop and killing them.
            preload: names of modules that are imported once, before the first worker starts, for all workers.
        """
        if not grace >= 0:
            raise ValueError(f"grace: expected seconds of at least 0, got {grace!r}")
        self._grace = grace
        self._began = time.monotonic()
        self._owner = os.getpid()
        self._entered = self._open = False
        self._children = Children(preload)
        self._workers: list[Worker] = []
        self._telemetries: dict[Child, Telemetry] = {}  # of workers that have not been seen to end
        self._failures: dict[Child, WorkerFailed] = {}  # failures that have not been raised yet
        self._lock = threading.RLock()  # any thread that waits may check the workers, and a handler may interrupt it
        self._numbers: Counter[str] = Counter()
        self._reported: list[Metric] = []
        self._held = ExitStack()

    def __enter__(self) -> "Workers":
        if self._entered:
            raise ClosedError("a group of workers can be entered only once: make another Workers() for another block")
        self._begin()
        return self

    def _begin(self) -> None:
        self._entered = True
        self._control = self._held.enter_context(closing(Control.create([])))  # tells all workers to stop
        self._open = True
        self._held.callback(self._children.close)
        _open_groups.add(self._check_in_a_wait)
        self._held.callback(_open_groups.remove, self._check_in_a_wait)

    def start(
        self, function: Callable[Concatenate[WorkerContext, P], object], /, *args: P.args, **kwargs: P.kwargs
    ) -> Worker:
        """Runs function(context, *args, **kwargs) in a new process, named after the function: "actor-0".

        Raises:
            TypeError: the function cannot be called, or it or an argument cannot be pickled.
            OSError: the system starts no process.
            WorkerFailed: a worker failed earlier. ClosedError: the group has ended.
        """
        return self.start_named(self._next_name(function), function, *args, **kwargs)

    def start_named(
        self, name: str, function: Callable[Concatenate[WorkerContext, P], object], /, *args: P.args, **kwargs: P.kwargs
    ) -> Worker:
        """Does `start` with a name for the worker, which is unique and has at most 64 bytes.

        Raises the errors of `start`; ValueError if the name is too long or used already.
        """
        if not self._entered and os.getpid() == self._owner:
            self._begin()
            atexit.register(self.close)
        self.check()
        if not callable(function):
            raise TypeError(f"function: expected a callable, got {brief(function)}")
        if not encoded_name("name", name):
            raise ValueError("name: expected at least 1 byte, got ''")
        if any(worker.name == name for worker in self._workers):
            raise ValueError(f"name: expected a name that no other worker has, got {name!r}")
        numbered = {f"argument {i + 1}": arg for i, arg in enumerate(args)}
        check_picklable(**{"function": function, **numbered, **kwargs})
        with self._children.uninterrupted():
            telemetry = Telemetry.create([name])
            with ClosedAfterError(telemetry):
                act = partial(
                    _live, name, self._control, telemetry, self._began, lambda c: function(c, *args, **kwargs)
                )
                child = self._children.start_worker(name, act)
                self._workers.append(Worker(child, self))
            self._telemetries[child] = telemetry
        return self._workers[-1]

    def check(self) -> None:
        """Raises WorkerFailed if a worker's failure was not raised yet, ClosedError if the group is not running."""
        if os.getpid() != self._owner:
            raise StaleHandle("these workers belong to the parent of this process, which was forked after their start")
        if not self._open:
            raise ClosedError("the group of workers has ended" if self._entered else "no worker was started yet")
        self._raise_failure()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all workers have returned; returns False after `timeout` seconds (None: no limit).

        Raises the errors of `check` as soon as a worker has failed.
        """
        deadline = deadline_of(timeout)
        while True:
            self.check()
            if not self._children.living:
                self.check()
                return True
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if not left > 0:
                return False
            self._children.wait(left)

    def close(self) -> None:
        """Ends the workers as the end of a block does; repeated calls are harmless.

        Raises WorkerFailed if a worker's failure was not raised yet.
        """
        atexit.unregister(self.close)
        if self._open:
            self.__exit__(None, None, None)

    def reports(self) -> list[Metric]:
        """Returns the workers' reports since the last call, in order of time, also after the block.

        Each has `.agent` (the worker's name), `.name`, `.value`, `.step` and `.time_s` since the group was entered. A
        worker that reports more than 4032 numbers between two calls loses its oldest reports.
        """
        with self._lock:
            for telemetry in [*self._telemetries.values()]:
                newer = telemetry.tail()
                self._reported += newer
            reports, self._reported = self._reported, []
        return sorted(reports, key=lambda metric: metric.time_s)

    def __iter__(self) -> Iterator[Worker]:
        """Iterates over all workers, also ended ones, in the order of their start."""
        return iter([*self._workers])

    def __len__(self) -> int:
        return len(self._workers)

    def _next_name(self, function: Callable[..., object]) -> str:
        while isinstance(function, partial):
            function = function.func
        called = getattr(function, "__name__", type(function).__name__)
        prefix = called if called.isidentifier() else "worker"
        number = self._numbers[prefix]
        self._numbers[prefix] += 1
        return f"{prefix}-{number}"

    def _check_in_a_wait(self) -> None:
        if os.getpid() == self._owner:
            self._raise_failure()

    def _note_ends(self) -> None:
        with self._lock:
            for child in [child for child in self._children.living if not child.running]:
                # Noted before `end`, so that no failure is lost if a signal handler raises between the two.
                failure = None if child in self._failures else child.failure()
                if failure is not None:
                    self._failures[child] = failure
                self._children.end(child)
            for child in [child for child in self._telemetries if child not in self._children.living]:
                if telemetry := self._telemetries.pop(child, None):  # a handler may have come first
                    last = telemetry.tail()
                    self._reported += last
                    telemetry.close()

    def _raise_failure(self) -> None:
        self._note_ends()
        with self._lock:
            failure = self._failures.pop(next(iter(self._failures))) if self._failures else None
        if failure is not None:
            raise failure

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # in a forked child, the end of the block must not end the workers
        signals = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
        self._children.interrupts = interrupts = Postponed(signals.get(kind) if kind else None)
        try:
            with interrupts:
                self._stop(interrupts)
        finally:
            self._held.close()
        raises = error is None and interrupts.signum is None
        for failure in [*self._failures.values()][int(raises) :]:
            log.error("%s", failure)
        if error is None:
            interrupts.deliver()
            self._raise_failure()

    def _stop(self, interrupts: Interrupts) -> None:
        self._control.stop()
        deadline = time.monotonic() + self._grace
        self._note_ends()
        while self._children.living and time.monotonic() < deadline and not interrupts.again:
            self._children.wait(min(LOOK_S, deadline - time.monotonic()))
            self._note_ends()
        for child in self._children.living:
            log.warning("%s did not end when it was told to stop, and is killed", child.name)
        with self._lock:  # so that no other thread takes the processes killed here for failures
            self._children.close()
        self._note_ends()  # for their last reports
        self._open = False


def _live(
    name: str, control: Control, telemetry: Telemetry, began: float, act: Callable[[WorkerContext], object]
) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].seed()  # otherwise all workers would draw the same numbers
    context = WorkerContext(name, control, telemetry, began)
    with control.checked_waits(context.check_waits):
        try:
            act(context)
        except SystemExit as end:
            if end.code not in (None, 0):  # sys.exit() counts as success
                raise
