"""Weights between nodes: a porter, on the learner's node, copies weights out of the learner's store (the home store).

On another node, a mirror keeps its own store at the newest version of the home store. A row is one version of weights.
"""

from collections.abc import Callable, Mapping
from threading import Event, Lock, Thread
from time import monotonic
from typing import Any, Protocol

import numpy as np

from ..checks import check_timeout
from ..closing import ClosedAfterError, Closing
from ..declared import Number
from ..errors import TimedOut
from ..weights import Mode, ParameterStore

_ASK_S = 0.5  # seconds that a porter waits for newer weights before it answers; `close` waits for the answer
_RETRY_S = 0.1  # seconds between attempts to reach a lost porter


class Porter:
    """Gives out a store's newest row of weights, or every row; copies a row once, however many nodes ask for it.

    Many threads may call the methods at once. A mirror in the same process takes a Porter as its link.

    Args:
        store: the home store.
        put: copies a row, read-only uint8 [layout.nbytes], out of shared memory; `fetch` returns the result of `put`.
        every: whether to give out each version that the store still holds, in order, instead of only the newest.

    Attributes:
        version: the version of the last copy; 0 before the first.
        copies, nbytes: the number of rows copied, and the number of bytes copied.
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
        """Waits for a version above `newer_than`; returns the newest row or, with `every`, the row after `newer_than`.

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


class WeightsSource(Protocol):
    """A `Porter`, or a link to one. Its methods raise ConnectionError while the porter cannot be reached."""

    def describe(self) -> dict[str, Any]: ...
    def fetch(self, newer_than: int, timeout: float) -> Any: ...


class Mirror(Closing):
    """Keeps a store on this node that has the versions of a home store on another node; a context manager.

    Whenever the home store has a newer version, a thread fetches the newest row (or every row, if the porter has
    `every=True`), and publishes it here under the same version. Actors on this node subscribe to `store` as to any
    other store. While the porter cannot be reached, the thread keeps trying until `close`.

    Args:
        link: the link to the home store's porter.
        mode: the number of slots of `store`, by name or as a number, as in `ParameterStore.create`; at least two.
        sync_seconds: least seconds between two fetches.
        timeout: seconds to wait for the porter's description of the home store.
        description: the home store's description, if the caller has it; the porter may then start later.
        name: part of the name of the store's segment.

    Attributes:
        store: the store on this node.
        fetched, nbytes: the number of rows fetched, and the number of bytes fetched.
        lost: the number of attempts that did not reach the porter.

    Raises:
        ConnectionError: the porter cannot be reached. ValueError: an argument is out of range.
    """

    def __init__(
        self,
        link: WeightsSource,
        *,
        mode: Mode | int = "double_buffer",
        sync_seconds: float = 0.0,
        timeout: float = 60.0,
        description: Mapping[str, Any] | None = None,
        name: str = "weights",
    ) -> None:
        check_timeout(timeout, or_none=False)
        self._link = link
        self._moving = Lock()
        self._sync_seconds: float = Number(0)("sync_seconds", sync_seconds)
        self._closing = Event()
        self._failure: Exception | None = None
        self.fetched = self.nbytes = self.lost = 0
        described = self._describe(monotonic() + timeout) if description is None else description
        self.store = ParameterStore.create_mirror(described, mode, name=name)
        with ClosedAfterError(self.store):
            self._writer = self.store.mirror_writer()
            self._thread = self._started(link)

    @property
    def version(self) -> int:
        """The newest version on this node; 0 before the first."""
        return self.store.version

    def check(self) -> None:
        """Raises the exception that ended the thread, if any: the porter failed, or did not send a row."""
        if self._failure is not None:
            raise self._failure

    def move(self, link: WeightsSource) -> None:
        """Switches to the porter of another store of the same layout.

        From now on, no row of the earlier store arrives. The present rows stay until a row of a higher version arrives.
        """
        with self._moving:
            self._link = link
        self._thread = self._started(link)  # the earlier thread may still wait for an answer, which it drops

    def close(self) -> None:
        """Ends the thread and closes the store. Repeated calls are harmless."""
        self._closing.set()
        self._thread.join()
        self._writer.close()
        self.store.close()

    def _describe(self, deadline: float) -> dict[str, Any]:
        while True:
            try:
                return self._link.describe()
            except ConnectionError:
                self.lost += 1
                if monotonic() > deadline:
                    raise
            self._closing.wait(_RETRY_S)

    def _started(self, link: WeightsSource) -> Thread:
        thread = Thread(target=self._run, args=(link,), name="mirror", daemon=True)
        thread.start()
        return thread

    def _run(self, link: WeightsSource) -> None:
        try:
            while link is self._link and not self._closing.is_set():
                self._closing.wait(self._sync_seconds if self._fetch(link) else 0.0)
        except Exception as error:
            if link is self._link:
                self._failure = error

    def _fetch(self, link: WeightsSource) -> bool:
        try:
            row = link.fetch(self.store.version, _ASK_S)
        except ConnectionError:
            self.lost += 1
            self._closing.wait(_RETRY_S)
            return False
        with self._moving:
            if row is None or link is not self._link or not self._writer.put(row):
                return False
        self.fetched += 1
        self.nbytes += self.store.layout.nbytes
        return True
