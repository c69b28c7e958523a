"""Starting worker processes, seeing them end, and ending them."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import select
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from .errors import EnvironmentFailed
from .rundir import setup_logging
from .workers import Blueprint, run_worker

__all__ = ["Failure", "Interrupts", "WorkerProcess", "end_with_parent", "reason_of", "wait_any"]

_SIGNALS = {signal.SIGINT, signal.SIGTERM}
PR_SET_PDEATHSIG = 1  # linux/prctl.h
MESSAGE_LIMIT = 12_000  # characters that fit a pipe nobody reads yet; the log has all of a traceback


@dataclass(frozen=True)
class Failure:
    """How a worker ended that did not end well.

    Attributes:
        reason: "environment", "worker", "death" or "hang"; see WorkerFailed.
        text: its traceback, or what is known of its end.
    """

    reason: str
    text: str


def reason_of(error: BaseException) -> str:
    """What failed when a worker raises."""
    return "environment" if isinstance(error, EnvironmentFailed) else "worker"


class WorkerProcess:
    """One worker in a process of its own, started by spawn.

    Attributes:
        name: the worker's. pid: of the process.
    """

    def __init__(self, name: str, blueprint: Blueprint, log: Path, attempt: int) -> None:
        """Raises OSError: the system starts no further process, or cannot watch it."""
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._errors, child_end = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_child_main, args=(name, blueprint, attempt, log, child_end, os.getpid()), name=name
        )
        # Starting multiprocessing's resource tracker unblocks signals, so it must not happen while they are blocked.
        resource_tracker.ensure_running()
        # Blocked signals stay blocked in the child, from its first instruction on: a signal that reaches the
        # whole process group is the parent's to handle, and it stays pending here until the child has started.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            self._process.start()
            assert self._process.pid is not None
            self.pid: int = self._process.pid
            self._pidfd = os.pidfd_open(self.pid)
        except BaseException:
            self._errors.close()
            if self._process.pid is not None:
                self._process.kill()
                self._process.join()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
            child_end.close()

    @property
    def pidfd(self) -> int:
        """Readable when the process has ended."""
        return self._pidfd

    @property
    def running(self) -> bool:
        return self._process.is_alive()

    def failure(self) -> Failure | None:
        """Why the worker raised, or how it died; None while it runs or when it ended well."""
        if self.running or self._process.exitcode == 0:
            return None
        try:
            if self._errors.poll():
                return Failure(*self._errors.recv())
        except (EOFError, OSError):
            pass  # it died before or in the middle of sending
        code = self._process.exitcode
        reason = "worker" if code is not None and code > 0 else "death"
        return Failure(reason, f"the process ended with {_describe(code)} and left no traceback")

    def kill(self) -> None:
        """Ends the process at once."""
        self._process.kill()

    def close(self) -> None:
        """Ends the process if it still runs, and gives back what it held here."""
        self._process.kill()
        self._process.join()
        self._errors.close()
        os.close(self._pidfd)
        self._process.close()


class Interrupts:
    """While entered, SIGINT and SIGTERM are noted instead of raising in the middle of something.

    Attributes:
        signum: the first signal that came, or None.
        count: how many came.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self.count = 0
        self._previous: dict[int, Any] = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = self.signum or signum
        self.count += 1

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # only there may handlers be set
            self._previous = {signum: signal.signal(signum, self._note) for signum in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)


def wait_any(processes: list[WorkerProcess], seconds: float) -> None:
    """Sleeps until one of the processes that still run ends or the time is up."""
    poll = select.poll()
    for process in processes:
        if process.running:
            poll.register(process.pidfd, select.POLLIN)
    poll.poll(seconds * 1000)


def _child_main(name: str, blueprint: Blueprint, attempt: int, log: Path, errors: Connection, parent: int) -> None:
    end_with_parent(parent)
    status = 0
    try:
        setup_logging(log)
        run_worker(name, blueprint, attempt)
    except BaseException as error:
        text = traceback.format_exc()
        logging.getLogger(__name__).error("%s failed:\n%s", name, text)
        errors.send((reason_of(error), text[-MESSAGE_LIMIT:]))
        status = 1
    logging.shutdown()
    os._exit(status)  # everything is closed, and taking torch down in order would cost a second


def end_with_parent(parent: int) -> None:
    """Has the kernel kill this process when its parent is gone, in whatever state it is then, and however it died."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:  # it died before
        os._exit(1)


def _describe(exitcode: int | None) -> str:
    if exitcode is not None and exitcode < 0:
        names = {signum.value: signum.name for signum in signal.Signals}
        return f"signal {names.get(-exitcode, -exitcode)}"
    return f"exit code {exitcode}"
