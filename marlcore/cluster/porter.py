"""The porter: takes the newest weights out of a store for the nodes that ask, in a process that is not the learner."""

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from ..errors import TimedOut
from ..weights import ParameterStore


class Porter:
    """Gives out the newest row of a store: one copy a publication that any node wants, however many ask.

    Its methods may be called by many threads at once. A mirror in the same process takes a Porter as its link.

    Args:
        store: the home store.
        put: copies a row, read-only uint8 [layout.nbytes], out of shared memory; `fetch` returns its result.

    Attributes:
        version: of the newest copy; 0 before the first.
        copies, nbytes: rows copied, and their bytes.
        requests: rows given out.
    """

    def __init__(self, store: ParameterStore, put: Callable[[Any], Any] = np.copy) -> None:
        self.store = store
        self._put = put
        self._lock = Lock()
        self._newest: Any = None
        self.version = self.copies = self.nbytes = self.requests = 0

    def describe(self) -> dict[str, Any]:
        """The store's description, for `ParameterStore.create_mirror`."""
        return self.store.description

    def fetch(self, newer_than: int, timeout: float) -> Any:
        """The newest row, once its version exceeds `newer_than`; None if that takes more than `timeout` seconds."""
        if not self.store.wait(newer_than, timeout):
            return None
        with self._lock:
            if self.store.version > self.version:
                try:
                    self.version, self._newest = self.store.copy_newest(self._put)
                except TimedOut:
                    return None  # the publisher overwrote it each time
                self.copies += 1
                self.nbytes += self.store.layout.nbytes
            self.requests += 1
            return self._newest
