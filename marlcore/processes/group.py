"""Worker processes for programs with their own loop: they start and stop together, and die with their parent."""

from __future__ import annotations

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

from ..checks import came, deadline_of
from ..errors import ClosedError, StaleHandle, WorkerFailed
from ..memory import SegmentHandle, interrupt_waits_with
from .control import Control
from .forkserver import ForkServer
from .signals import STOPPING, Interrupts, raise_for
from .telemetry import Metric, Reporter, Telemetry, encoded_name
from .worker import Failure, WorkerProcess, check_picklable, wait_any

LOOK_S = 0.1
PRELOAD = ("marlcore.preload",)  # modules that workers of marlcore need
P = ParamSpec("P")
log = logging.getLogger(__name__)


class WorkerContext:
    """The first argument of a worker's function.

    Attributes:
        name: the worker's name.
    """

    def __init__(self, name: str, control: Control, reporter: Reporter, began: float) -> None:
        self.name = name
        self._control = control
        self._reporter = reporter
        self._began = began

    @property
    def stopping(self) -> bool:
        """Whether the worker must end; check it in each iteration of the worker's loop."""
        return self._control.stopping

    def report(self, name: str, value: float, step: int = 0) -> None:
        """Sends a number to the parent, which reads it by `Workers.reports`; never waits.

        Args:
            name: the number's name, at most 64 bytes.
            step: the worker's progress, if useful.
        """
        self._reporter.report(Metric(time.monotonic() - self._began, step, self.name, name, float(value)))

    def check_waits(self) -> None:
        """Raises ClosedError: the worker must end."""
        if self.stopping:
            raise ClosedError(f"{self.name}: the workers are stopping")


class Worker:
    """One process of a group.

    Attributes:
        name: the worker's name. pid: its process id.
    """

    def __init__(self, process: WorkerProcess, control: Control, telemetry: Telemetry) -> None:
        self.name = process.name
        self.pid = process.pid
        self.control = control
        self.telemetry = telemetry
        self.process: WorkerProcess | None = process  # None once its end was seen
        self._failure: Failure | None = None
        self._lock = threading.Lock()  # any waiting thread may check the workers

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        with self._lock:
            if self.process is not None and not self.process.running:
                self._failure = self.process.failure()
                self._let_go()
            return self.process is not None

    def take_failure(self) -> WorkerFailed | None:
        """How it failed; only the first call returns it."""
        if self.running:
            return None
        failure, self._failure = self._failure, None
        return WorkerFailed(self.name, failure.reason, failure.text) if failure else None

    def kill(self) -> None:
        """Kills the process; this does not count as a failure."""
        with self._lock:
            self._let_go()

    def close(self) -> None:
        """Releases the memory shared with its process, including memory that lives until its last view is gone."""
        self.telemetry.close()
        self.control.close()
        del self.telemetry, self.control

    def _let_go(self) -> None:
        if self.process is not None:
            self.process.close()
            self.process = None

    def __repr__(self) -> str:
        return f"<Worker {self.name}, process {self.pid}>"


class Workers:
    """Functions that run in their own processes for the duration of a block.

        with mc.Workers() as workers:
            workers.start(actor, replay, lane)    # calls actor(context, replay, lane) in a new process
            ...

    - **End.** When the block ends, for any reason, `context.stopping` becomes True in every worker; a worker that has
      not returned `grace` seconds later is killed. In the main thread SIGTERM and SIGHUP end the block by SystemExit,
      as SIGINT does by KeyboardInterrupt, unless the program handles or ignores them. If this process dies for any
      reason, the kernel kills the workers.
    - **Waits.** Once the workers are stopping, a wait of marlcore in a worker (`add`, `sample`, `read`, `wait`) raises
      ClosedError. A function that this error ends has ended well.
    - **Failures.** If a worker raised or died, this process raises WorkerFailed with its traceback, once: in the next
      `start`, `check` or `wait`, in any wait of marlcore, or at the block's end unless the block raised another
      exception. Workers are never restarted.
    - **Signals.** SIGINT, SIGTERM and SIGHUP do nothing in a worker; programs that it starts have the default actions.
      Programs started by a killed worker may live on.

    A worker's function and arguments are pickled by value where needed, so lambdas, closures and definitions of a
    script or a notebook work. Replays, stores and queues among them attach to the same memory. torch uses one
    thread in a worker, unless its function sets another number.
    """

    def __init__(self, grace: float = 10.0, preload: Sequence[str] = PRELOAD) -> None:
        """Args:
        grace: seconds between telling the workers to stop and killing them.
        preload: modules imported once, before the first worker, so that workers start with them loaded.
        """
        if not grace >= 0:
            raise ValueError(f"grace: expected seconds of at least 0, got {grace!r}")
        self._grace = grace
        self._began = time.monotonic()
        self._owner = os.getpid()
        self._entered = self._open = False
        self._workers: list[Worker] = []
        self._numbers: Counter[str] = Counter()
        self._reported: list[Metric] = []
        self._interrupts = Interrupts()
        self._server = ForkServer(preload, hurry=lambda: self._interrupts.signum is not None)
        self._held = ExitStack()

    def __enter__(self) -> Workers:
        """Raises ClosedError: the group was entered before."""
        if self._entered:
            raise ClosedError("a group of workers is entered once: make another Workers() for another block")
        self._entered = self._open = True
        self._held.callback(self._server.close)
        before = interrupt_waits_with(None)
        interrupt_waits_with(self._in_a_wait(before))
        self._held.callback(interrupt_waits_with, before)
        if threading.current_thread() is threading.main_thread():
            for signum in STOPPING:
                if signal.getsignal(signum) is signal.SIG_DFL:
                    self._held.callback(signal.signal, signum, signal.signal(signum, raise_for))
        return self

    def start(
        self, function: Callable[Concatenate[WorkerContext, P], object], /, *args: P.args, **kwargs: P.kwargs
    ) -> Worker:
        """Runs function(context, *args, **kwargs) in a new process, named after the function: "actor-0".

        Raises:
            TypeError: the function cannot be called, or it or an argument cannot be pickled.
            OSError: the system starts no process.
            WorkerFailed: a worker failed earlier. ClosedError: not inside the block.
        """
        return self.start_named(self._next_name(function), function, *args, **kwargs)

    def start_named(
        self, name: str, function: Callable[Concatenate[WorkerContext, P], object], /, *args: P.args, **kwargs: P.kwargs
    ) -> Worker:
        """`start` with a name for the worker: unique, at most 64 bytes.

        Raises: see `start`; ValueError: the name is too long or taken.
        """
        self.check()
        if not callable(function):
            raise TypeError(f"function: expected a callable, got {came(function)}")
        if not encoded_name("name", name):
            raise ValueError("name: expected at least 1 byte, got ''")
        if any(worker.name == name for worker in self._workers):
            raise ValueError(f"name: expected one that no other worker has, got {name!r}")
        given = {"function": function, **{f"argument {i + 1}": arg for i, arg in enumerate(args)}, **kwargs}
        check_picklable(**given)
        self._interrupts = Interrupts()
        try:
            with self._interrupts:
                self._workers.append(self._launch(name, function, args, kwargs))
        finally:
            self._interrupts.deliver()
        return self._workers[-1]

    def check(self) -> None:
        """Raises WorkerFailed: a worker failed, which was not yet raised. ClosedError: not inside the block."""
        if os.getpid() != self._owner:
            raise StaleHandle("the workers were started before a fork, and are the parent's")
        if not self._open:
            raise ClosedError("workers are started inside their with-block, which makes them end")
        self._raise_failure()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until all workers have returned; False at the timeout in seconds, None waits for ever.

        Raises: see `check`, as soon as a worker failed.
        """
        deadline = deadline_of(timeout)
        while True:
            self.check()
            running = [worker for worker in self._workers if worker.running]
            if not running:
                self.check()
                return True
            left = LOOK_S if deadline is None else min(LOOK_S, deadline - time.monotonic())
            if not left > 0:
                return False
            wait_any([worker.process for worker in running if worker.process], left)

    def reports(self) -> list[Metric]:
        """The workers' reports since the last call, in order of time; after the block, the rest.

        Each has `.agent` (the worker's name), `.name`, `.value`, `.step` and `.time_s` since the group was entered. A
        worker that reports more than 4095 numbers between two calls overwrites its oldest.
        """
        self._collect()
        found, self._reported = self._reported, []
        return found

    def __iter__(self) -> Iterator[Worker]:
        """All workers in the order of their start, including those that have ended."""
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

    def _launch(self, name: str, function: Callable[..., object], args: Any, kwargs: Any) -> Worker:
        with ExitStack() as unless_started:
            control = unless_started.enter_context(closing(Control.create([name])))
            telemetry = unless_started.enter_context(closing(Telemetry.create([name])))
            life = partial(_live, name, control.handle, telemetry.handle, self._began, function, args, kwargs)
            worker = Worker(WorkerProcess(self._server, name, life), control, telemetry)
            unless_started.pop_all()
        return worker

    def _in_a_wait(self, before: Callable[[], None] | None) -> Callable[[], None]:
        """The check of every wait in this process: the previous check, then the workers' failures."""

        def check() -> None:
            if before is not None:
                before()
            if os.getpid() == self._owner:
                self._raise_failure()

        return check

    def _raise_failure(self) -> None:
        for worker in self._workers:
            failure = worker.take_failure()
            if failure is not None:
                raise failure

    def _collect(self) -> None:
        found = [metric for worker in self._workers for metric in worker.telemetry.tail()] if self._open else []
        self._reported += sorted(found, key=lambda metric: metric.time_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.getpid() != self._owner:
            return  # a forked child that leaves the block must not end the workers
        came = {KeyboardInterrupt: signal.SIGINT, SystemExit: signal.SIGTERM}
        self._interrupts = Interrupts(came.get(kind) if kind else None)
        try:
            with self._interrupts:
                self._stop()
        finally:
            self._held.close()
        if error is None:
            self._interrupts.deliver()
            self._raise_failure()
        for worker in self._workers:
            failure = worker.take_failure()
            if failure is not None:
                log.error("%s", failure)

    def _stop(self) -> None:
        """Waits for the workers to end; kills them after the grace, or at once after a second signal."""
        for worker in self._workers:
            worker.control.stop()
        deadline = time.monotonic() + self._grace
        while running := [worker for worker in self._workers if worker.running]:
            left = min(LOOK_S, deadline - time.monotonic())
            if not left > 0 or self._interrupts.again:
                break
            wait_any([worker.process for worker in running if worker.process], left)
        for worker in running:
            log.warning("%s did not end when it was told to stop, and is killed", worker.name)
            worker.kill()
        self._collect()
        self._open = False
        for worker in self._workers:
            worker.close()


def _live(
    name: str,
    control_handle: SegmentHandle,
    telemetry_handle: SegmentHandle,
    began: float,
    function: Callable[..., object],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Runs a worker in its process."""
    if "torch" in sys.modules:
        sys.modules["torch"].seed()  # otherwise all workers would draw the same numbers
    with (
        Control.attach(control_handle) as control,
        Telemetry.attach(telemetry_handle) as telemetry,
        closing(telemetry.reporter(name)) as reporter,
    ):
        context = WorkerContext(name, control, reporter, began)
        interrupt_waits_with(context.check_waits)
        try:
            function(context, *args, **kwargs)
        except ClosedError:
            if not context.stopping:
                raise
        except SystemExit as end:
            if end.code not in (None, 0):  # as usual, sys.exit() counts as success
                raise
