"""The base of all writers: a claim on lanes, which ends at `close` and is not inherited by forks."""

import errno
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..checks import brief
from ..closing import Closing
from ..errors import StaleHandle
from ..memory import Check, File, Inside, NativeVector, NativeWriter, close_when_alone, error_of

Flags = NDArray[np.bool_]
# Waits until a limiter or a queue lets a writer add these numbers of transitions and boundary rows. False: the writer
# must drop the rows. Raises TimeoutError, ValueError if no wait would ever be enough, and the errors of the check.
Gate = Callable[[int, int, float | None, Check], bool]
# Waits likewise for room for one row in each of k lanes, int64 [k]; returns the rows to drop, bool [k]; False: none.
VectorGate = Callable[[NDArray[np.int64], Flags, float | None, Check], Flags | bool]


class WriterBase(Closing):
    """The base of Writer and VectorWriter; register it with `invalidate_after_fork` once it is complete."""

    _gate: Any  # see Gate and VectorGate

    def __init__(self, claim: File, native: NativeWriter | NativeVector, timeout: float | None) -> None:
        self._claim = claim
        self._native = native
        self._timeout = timeout
        self._forked = False
        self._inside: Inside = {}

    @property
    def policy_version(self) -> int:
        """The version of the acting weights, stored with every later row; initially 0."""
        return int(self._native.raw.policy_version)

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        try:
            self._native.raw.policy_version = index(version) & 0xFFFFFFFF
        except TypeError:
            raise TypeError(f"policy_version: expected an integer, got {brief(version)}") from None

    def check_open(self) -> None:
        """Raises ClosedError after `close`, StaleHandle in a forked child."""
        if self._native.closed:
            raise self._error_of(-errno.ESHUTDOWN)

    def close(self) -> None:
        """Waits until no other thread is inside an add, then releases the lanes. Repeated calls are harmless.

        In a signal handler, the lanes are free once the add that it interrupts has ended.
        """
        self._native.close()
        close_when_alone(self._claim, self._inside)

    def forked(self) -> None:
        """Makes later use in a forked child raise StaleHandle, since the lanes belong to the parent."""
        self._native.close()
        self._forked = True
        if self._gate is not None:  # which would write to the parent's lanes
            self._gate = self._refuse

    def __reduce__(self) -> Any:
        raise TypeError(f"a {type(self).__name__} belongs to one process: pass the replay and make one there")

    def _refuse(self, *add: Any) -> bool:
        raise self._error_of(-errno.ESHUTDOWN)

    def _error_of(self, code: int) -> Exception:
        if self._forked:
            return StaleHandle("the writer was made before a fork, and its lanes belong to the parent")
        return error_of(code)
