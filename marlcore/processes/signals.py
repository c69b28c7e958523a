"""Stop signals: the parent notes them, its workers survive them, and programs that workers start receive them.

A terminal sends SIGINT, and SIGHUP when it closes, to the whole process group, but only the parent reacts. Another
signal, STACKS, asks a worker that hangs for its stacks.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, TextIO

STACKS = signal.SIGRTMAX - 3  # programs use SIGUSR1 and SIGUSR2, and libraries the first real-time signals
STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
PATIENCE_S = 1.0  # seconds in which a repeated signal is not a second request: wrappers repeat signals to the group

_masks = threading.local()


def stopped(folder: str, resume: str = "") -> KeyboardInterrupt:
    """Returns a KeyboardInterrupt whose message says that resume=`resume`, by default `folder`, continues the work.

    It must not be a subclass: Python ends by the signal, as shells expect, only after KeyboardInterrupt itself.
    """
    stop: Any = KeyboardInterrupt(f"stopped; call it again with resume={resume or folder!r} to continue")
    stop.folder = folder
    return stop  # type: ignore[no-any-return]


class Interrupts:
    """Tells when work must end: after a stop signal, or after a call of `stop` or `finish` from any thread.

    In its `with` block, SIGINT, SIGTERM and SIGHUP are noted instead of raised at an arbitrary point. An ignored
    SIGHUP, as under nohup, stays ignored. Outside the main thread, no signals are noted.

    Attributes:
        signum: the first signal, or None.
        stopping: whether a signal came or `stop` was called.
        again: whether another signal came more than a second later.
        finishing: whether `finish` was called.
        reason: the reason given to the first `stop` or `finish`, or None.
        error: the first exception given to `stop`, which `deliver` raises, or None.
    """

    def __init__(self, signum: int | None = None) -> None:
        self.signum = signum
        self.stopping = signum is not None
        self.again = False
        self.finishing = False
        self.reason: str | None = None
        self.error: BaseException | None = None
        self._first = time.monotonic()
        self._previous: dict[int, Any] = {}

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum, self.stopping, self._first = signum, True, time.monotonic()
        elif time.monotonic() - self._first > PATIENCE_S:
            self.again = True

    def stop(self, reason: str, error: BaseException | None = None) -> None:
        """Tells the work to end at once; only the first reason and the first error are kept."""
        if self.error is None:
            self.error = error
        if self.reason is None:
            self.reason = reason
        self.stopping = True

    def finish(self, reason: str) -> None:
        """Tells the work to end as if it were complete."""
        if self.reason is None:
            self.reason = reason
        self.finishing = True

    def deliver(self, folder: str = "") -> None:
        """After a signal, raises KeyboardInterrupt (see `stopped`) or SystemExit(128 + signum).

        Otherwise raises `self.error`, if set.
        """
        if self.signum == signal.SIGINT and folder:
            raise stopped(folder)
        if self.signum is not None:
            raise_for(self.signum)
        if self.error is not None:
            raise self.error

    def __enter__(self) -> "Interrupts":
        if threading.current_thread() is threading.main_thread():  # only this thread may set handlers
            hung_up = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
            noted = STOPPING if hung_up else STOPPING - {signal.SIGHUP}
            self._previous = {signum: signal.signal(signum, self._note) for signum in noted}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)


class Postponed(Interrupts):
    """Interrupts that leave the program its own handlers: at the block's end they get the signals that came.

    Such signals do not count as a request to end, and ignored ones stay ignored.
    """

    def __enter__(self) -> "Postponed":
        self._came: list[int] = []
        if threading.current_thread() is threading.main_thread():
            for signum in STOPPING:
                handler = signal.getsignal(signum)
                ours = handler in (signal.SIG_DFL, signal.default_int_handler, raise_for)
                if ours or callable(handler):
                    self._previous[signum] = signal.signal(signum, self._note if ours else self._keep)
        return self

    def _keep(self, signum: int, frame: FrameType | None) -> None:
        self._came.append(signum)

    def __exit__(self, *exc_info: object) -> None:
        super().__exit__(*exc_info)
        with ExitStack() as stack:  # calls each, whatever another raises
            for signum in reversed(self._came):
                stack.callback(self._previous[signum], signum, None)


def raise_for(signum: int, frame: FrameType | None = None) -> None:
    """A signal handler that raises KeyboardInterrupt for SIGINT, SystemExit(128 + signum) for others."""
    if signum == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + signum)


def outlive_signals() -> None:
    """Makes this process, started with the stop signals blocked, survive them.

    It installs handlers that do nothing. (Programs started from here would inherit blocked or ignored signals, and no
    signal could terminate them.) Such programs, and forks of this process, get the default actions.
    """
    for signum in STOPPING:
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, _do_nothing)
            signal.siginterrupt(signum, False)  # libraries need not expect EINTR
    os.register_at_fork(before=_hold_back, after_in_parent=_let_in, after_in_child=_restore_and_let_in)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def write_stacks_when_asked(file: TextIO | None = None) -> None:
    """Makes the signal STACKS write the Python stacks of all threads to an open file, by default to stderr.

    faulthandler's handler needs no interpreter lock, so it works even if a C function never releases the lock. A thread
    of its own takes the signal, even if all other threads block it, and blocks all other signals. The thread ends
    when this process first forks, since Python warns if a process with threads forks.
    """
    stream = file or sys.__stderr__  # sys.stderr may have been replaced
    if stream is None or stream.closed:  # this process has no standard error
        return
    faulthandler.register(STACKS, stream)
    forks = threading.Event()

    def take_signal() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {STACKS})
        forks.wait()

    def end() -> None:
        forks.set()
        thread.join()
        while os.path.exists(f"/proc/self/task/{thread.native_id}"):  # the kernel takes a little longer than `join`
            os.sched_yield()

    thread = threading.Thread(target=take_signal, name="marlcore-stacks", daemon=True)
    thread.start()
    os.register_at_fork(before=end)


@contextmanager
def handlers_kept() -> Iterator[None]:
    """Restores the handlers of SIGINT and SIGTERM after a `with` block that may replace them, as `ray.init` does."""
    replaceable = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    handlers = {signum: signal.getsignal(signum) for signum in replaceable}
    try:
        yield
    finally:
        for signum, handler in handlers.items():
            signal.signal(signum, handler)


@contextmanager
def stop_signals_blocked() -> Iterator[None]:
    """Blocks stop signals in a `with` block that starts a process, so that signals to its group do not reach it."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _do_nothing(signum: int, frame: FrameType | None) -> None:
    pass


def _hold_back() -> None:
    """Blocks the stop signals before a fork, until the child has its own handlers."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _restore_and_let_in() -> None:
    for signum in STOPPING:
        if signal.getsignal(signum) is _do_nothing:  # otherwise it is the program's own handler
            signal.signal(signum, signal.SIG_DFL)  # Python's own handler would raise in this hook, without effect
    _let_in()
