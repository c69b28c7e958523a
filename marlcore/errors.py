"""Every error that marlcore raises for a reason of its own derives from MarlcoreError.

Bad arguments are ValueError or TypeError, as everywhere in Python.
"""

from __future__ import annotations

__all__ = [
    "ClosedError",
    "EnvironmentFailed",
    "LaneBusy",
    "LayoutMismatch",
    "MarlcoreError",
    "NotEnoughData",
    "SegmentCorrupt",
    "SegmentNotFound",
    "SharedMemoryFull",
    "StaleHandle",
    "UsedByTwoThreads",
    "WorkerFailed",
]


class MarlcoreError(Exception):
    """Base of marlcore's errors."""


class SharedMemoryFull(MarlcoreError, MemoryError):
    """The file system or the memory limit has no room for a segment; nothing was created."""


class SegmentNotFound(MarlcoreError, FileNotFoundError):
    """No segment has this name (it was unlinked, or never created)."""


class SegmentCorrupt(MarlcoreError):
    """A file is no segment of this version of marlcore, or its header or counters are damaged."""


class LayoutMismatch(MarlcoreError, ValueError):
    """A segment, model or replay is laid out in another way than the caller expects."""


class LaneBusy(MarlcoreError):
    """The lane has a living writer; the kernel says so."""


class NotEnoughData(MarlcoreError):
    """The replay holds too few transitions to sample from."""


class StaleHandle(MarlcoreError):
    """A handle names a segment that was replaced, or crossed a fork."""


class UsedByTwoThreads(MarlcoreError, RuntimeError):
    """A thread called what another thread was inside of; its own call did nothing."""


class ClosedError(MarlcoreError):
    """The object was closed."""


class EnvironmentFailed(MarlcoreError):
    """An environment raised, or returned what its replay refuses; the error behind it is the `__cause__`."""


class WorkerFailed(MarlcoreError):
    """A worker raised, died or hung, as often as the run allows.

    Attributes:
        worker: the worker's name, such as "actor-0" or "learner-agent_1".
        reason: what failed last: "environment" and "worker" raised, "death" (a signal, as a rule) and "hang" did not.
        traceback: the worker's formatted traceback, or how its process ended; of each start, the last one at the end.
    """

    def __init__(self, worker: str, reason: str, traceback: str) -> None:
        whose = f"{worker}'s environment" if reason == "environment" else worker
        super().__init__(f"{whose} failed:\n{traceback}")
        self.worker = worker
        self.reason = reason
        self.traceback = traceback

    def __reduce__(self) -> tuple[type[WorkerFailed], tuple[str, str, str]]:
        return WorkerFailed, (self.worker, self.reason, self.traceback)
