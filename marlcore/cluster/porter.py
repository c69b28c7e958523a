"""The porter: copies weights out of a store for other nodes, in a process beside the learner's."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from ..errors import TimedOut
from ..weights import ParameterStore


class Porter:
    """Gives out the newest row of a store, or every row. It copies a requested row once, however many nodes request it.

    Many threads may call its methods at once. A mirror in the same process takes a Porter as its link.

    Args:
        store: the home store.
        put: copies a row, read-only uint8 [layout.nbytes], out of shared memory; `fetch` returns its result.
        every: give out each version that the store still holds, in order, instead of the newest alone.

    Attributes:
        version: the version of the last copy; 0 before the first.
        copies, nbytes: the number of rows copied, and of their bytes.
        requests: the number of rows given out.
    """

    def __init__(self, store: ParameterStore, put: Callable[[Any], Any] = np.copy, *, every: bool = False) -> None:
        self.store = store
        self._put = put
        self._every = every
        self._lock = Lock()
        self._last: Any = None
        self.version = self.copies = self.nbytes = self.requests = 0

    def describe(self) -> dict[str, Any]:
        """Returns the store's description, for `ParameterStore.create_mirror`."""
        return self.store.description

    def fetch(self, newer_than: int, timeout: float) -> Any:
        """Waits for a version above `newer_than`; returns the newest row or, with `every`, the next one.

        Returns None if no such version appears within `timeout` seconds.
        """
        if not self.store.wait(newer_than, timeout):
            return None
        with self._lock:
            if self.version != (newer_than + 1 if self._every else self.store.version):
                try:
                    store, put = self.store, self._put
                    copied = store.copy_next(newer_than, put) if self._every else store.copy_newest(put)
                except TimedOut:
                    copied = None
                if copied is None:
                    return None  # the publisher overwrote the row during each copy
                self.version, self._last = copied
                self.copies += 1
                self.nbytes += self.store.layout.nbytes
            self.requests += 1
            return self._last
