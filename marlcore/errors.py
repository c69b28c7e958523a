"""The errors of marlcore, which derive from MarlcoreError.

Bad arguments raise ValueError or TypeError, as usual in Python. A message names the expected value, the actual value
and the place.
"""

from __future__ import annotations

import signal
from functools import partial
from traceback import walk_tb
from typing import Any

from .checks import printable


class MarlcoreError(Exception):
    """Base of marlcore's errors.

    This class itself is raised for causes that no program needs to distinguish: writers overwrite the rows of every
    draw (use a larger capacity), processes cannot be started, file descriptors run out. The message names the remedy.
    """

    def __str__(self) -> str:
        return printable(super().__str__(), but="\n\t")  # a traceback has these; names may have any characters


class SharedMemoryFull(MarlcoreError, MemoryError):
    """The file system or the memory limit has no room for a segment; nothing was created.

    Choose a smaller capacity, give the container a larger /dev/shm (Docker: `--shm-size=8g`), put the segment into an
    ordinary file (`path=`, `replay.path`), or remove the segments that killed programs left (`marlcore gc`).
    """


class SegmentNotFound(MarlcoreError, FileNotFoundError):
    """No segment has this name: it was unlinked or never created.

    Its creator has ended or has not begun: create the segment before other processes attach, and call `unlink` last.
    """


class SegmentCorrupt(MarlcoreError):
    """A file is not a segment of this version of marlcore, or its header or counters are damaged.

    Segments in /dev/shm belong to one version: let all programs use the same one. Restore a damaged save from a copy.
    """


class LayoutMismatch(MarlcoreError, ValueError):
    """A segment, model or replay has another layout than the caller expects.

    Both sides must have equal specs, stacks and models. The message names the first field that differs.
    """


class LaneBusy(MarlcoreError):
    """The lane has a living writer, as proved by its kernel lock.

    Choose another lane, close the first writer, or open the lane with `shared=True`. A dead writer
    loses its lock; a stopped process (SIGSTOP, a debugger) lives and keeps its lane. The name of a durable
    replay's sampler is held in the same way, until that sampler is closed.
    """


class NotEnoughData(MarlcoreError):
    """The replay holds too few transitions to sample from.

    Wait with `sample(timeout=...)`, ask `can_sample()` first, or lower `min_size`. N-step returns, stacks and
    sequences need more rows than a batch has; see docs/options.md.
    """


class NotHeld(MarlcoreError, IndexError):
    """A replay does not hold some of the rows that `ReplayBuffer.read` asked for.

    Writers have overwritten them, their next rows are not written yet, or the index is of another replay or of other
    lanes. Use a larger capacity, or `read(index, missing="skip")`.
    """


class NotEnoughMemory(MarlcoreError, MemoryError):
    """The machine or the memory limit has less free memory than the caller wants to remain free.

    Free memory, raise the limit, or lower `min_free_memory_fraction`.
    """


class StaleHandle(MarlcoreError):
    """A handle names a segment that was replaced, or a forked child used a writer, publisher or prefetch of its parent.

    Pass on the new segment's handle. In a forked child, make another writer, of a lane that the parent does not hold.
    """


class TimedOut(MarlcoreError, TimeoutError):
    """A wait of marlcore exceeded its timeout. (A TimeoutError that a signal handler raised has another type.)

    The awaited process is slow or dead: `marlcore top` shows a run's processes. If it is only slow, raise the timeout.
    """


class UsedByTwoThreads(MarlcoreError, RuntimeError):
    """A thread called an object while another thread was inside it; the call had no effect.

    Give each thread a writer, sampler or reader of its own, or hold a lock around the calls.
    """


class ClosedError(MarlcoreError):
    """The object was closed.

    In a worker, a wait ends with this error when the run ends: let the function return, or do not catch the error.
    """


class Fenced(MarlcoreError):
    """A successor has taken a sender's place: the sender's messages are refused from now on.

    The sender's machine was silent for longer than `cluster.lease_seconds`, and another process took over. Let the
    sender end; with slow networks or busy machines raise `cluster.lease_seconds`.
    """


class LinkLost(MarlcoreError, ConnectionError):
    """The process at the other end of a link cannot be reached, temporarily or for good.

    Relays and mirrors then try again. Raise this error in your own link classes, too, so that their calls are repeated.
    """


class EnvironmentFailed(MarlcoreError):
    """An environment raised, or returned a value that its replay refuses; the original error is the `__cause__`.

    Play the environment alone with `marlcore.testing.check_env`. In a run, logs/ has the whole traceback.
    """


class Diverged(MarlcoreError):
    """A learner's loss, weights or state are no longer finite; it is not restarted, since it would diverge again.

    Lower `learning_rate`, scale rewards (`reward_scale`, `learner.reward_norm`), and look for NaN in observations and
    rewards (`marlcore.testing.check_env`). The last checkpoint dates from before the divergence.
    """


class Deadlocked(MarlcoreError):
    """A queue's writer and its reader wait for each other, which only damaged counters make possible.

    The message names the segment and the lane. A run ends at once: a restarted worker would wait again.
    """


class StopRun(MarlcoreError):
    """A callback raises this error to end its run in order; the message becomes `Result.stopped`.

    `train` does not raise it, but returns the result.
    """


class WorkerFailed(MarlcoreError):
    """A worker raised, died or hung more often than the run allows.

    Look at `reason` and `traceback`, and at logs/ of the run's directory. A SIGKILL without a message is often the
    kernel's out-of-memory killer. `supervision` sets the restarts and time-outs.

    Attributes:
        worker: the worker's name, such as "actor-0" or "learner-agent_1".
        reason: the last failure: "environment" or "worker" (where an exception came from), "diverged" (see `Diverged`),
            "deadlock" (see `Deadlocked`), "death" (usually by a signal) or "hang".
        traceback: for each start of the worker, in order, its formatted traceback or the way its process ended; a
            single line if the worker diverged, the disk is full, or an environment's value was refused. marlcore's own
            frames are left out if the worker's log file or, in serial mode, the `__cause__` has them.
    """

    def __init__(self, worker: str, reason: str, traceback: str) -> None:
        whose = f"{worker}'s environment" if reason == "environment" else worker
        separator = "\n" if "\n" in traceback else " "
        super().__init__(f"{whose} failed:{separator}{traceback}")
        self.worker = worker
        self.reason = reason
        self.traceback = traceback

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), vars(self)  # past `__init__`, whose arguments differ


class WorldModelFailed(WorkerFailed):
    """A world model raised an error, which is the `__cause__` if the model ran in this process.

    To debug it, ask the model about `state` and `profile` in a program of its own. `set_state` must restore everything
    that the model depends on.

    Attributes:
        state, profile: the state and the profile about which the model was asked.
        worker: the process in which the model ran. reason: "environment". traceback: the formatted traceback.
    """

    def __init__(self, state: object, profile: tuple[int, ...], traceback: str, worker: str = "this process") -> None:
        super().__init__(worker, "environment", traceback)
        self.args = (f"the world model failed in state {state!r} with profile {profile}, in {worker}:\n{traceback}",)
        self.state = state
        self.profile = profile

    def of(self, worker: str) -> WorldModelFailed:
        return WorldModelFailed(self.state, self.profile, self.traceback, worker)


class CallbackFailed(WorkerFailed):
    """A function given to a planner raised an error, which is the `__cause__` if it ran in this process.

    To debug it, call the function with `state` in a program of its own.

    Attributes:
        what: the function, in words. state: the state with which the function was called.
        worker: the process in which the function ran. reason: "worker". traceback: the formatted traceback.
    """

    def __init__(self, what: str, state: object, traceback: str, worker: str = "this process") -> None:
        super().__init__(worker, "worker", traceback)
        self.args = (f"{what} failed in state {state!r}, in {worker}:\n{traceback}",)
        self.what = what
        self.state = state

    def of(self, worker: str) -> CallbackFailed:
        return CallbackFailed(self.what, self.state, self.traceback, worker)


def is_from_handler(error: Exception) -> bool:
    """Whether one of the program's signal handlers raised the error."""
    handlers: list[Any] = [signal.getsignal(signum) for signum in signal.valid_signals()]
    for i, handler in enumerate(handlers):
        while isinstance(handler, partial):
            handlers[i] = handler = handler.func
    handlers += [type(handler).__call__ for handler in handlers if callable(handler)]
    codes = {getattr(handler, "__code__", None) for handler in handlers}
    return any(frame.f_code in codes for frame, _ in walk_tb(error.__traceback__))


def pass_on_from_handler(error: Exception) -> None:
    """Reraises `error` if a signal handler of the program raised it; for code that catches any exception."""
    if is_from_handler(error):
        raise error


class suppress_failed_calls:  # noqa: N801 it is used like contextlib.suppress
    """Suppresses the OSError of a system call that failed with one of these errnos; without errnos, with any errno.

    An OSError without an errno, such as a TimeoutError that a signal handler raised, passes through.
    """

    # Not a @contextmanager: since Python 3.12 that makes a reference cycle of the error and its callers' frames.
    def __init__(self, *codes: int) -> None:
        self._codes = codes

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, OSError) or error.errno is None:
            return False
        return not self._codes or error.errno in self._codes
