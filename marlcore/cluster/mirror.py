"""The mirror: keeps a store of this node at the newest version of its home store."""

from threading import Event, Thread
from time import monotonic
from typing import Any, Protocol

from ..checks import brief, check_timeout, is_number
from ..closing import ClosedAfterError, Closing
from ..weights import Mode, ParameterStore

_ASK_S = 0.5  # how long a porter may look for newer weights before it answers: `close` waits for that
_RETRY_S = 0.1  # between attempts to reach a lost porter


class WeightsSource(Protocol):
    """A `Porter`, or a link to one. Both methods raise ConnectionError while it cannot be reached."""

    def describe(self) -> dict[str, Any]: ...
    def fetch(self, newer_than: int, timeout: float) -> Any: ...


class Mirror(Closing):
    """A store of this node that serves the versions of its home store; a context manager.

    A thread fetches the newest row whenever there is a newer one, never a backlog, and publishes it here under the same
    version. Actors of this node subscribe to `store` as to any other. A lost porter is tried again until `close`.

    Args:
        link: to the home store's porter.
        mode: slots of the store here, at least two.
        sync_seconds: the least time between two fetches; 0: none.
        timeout: seconds to wait for the porter's description of the home store.
        name: part of the segment's name.

    Attributes:
        store: the store here.
        fetched, nbytes: rows fetched, and their bytes.
        lost: attempts that did not reach the porter.

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
        name: str = "weights",
    ) -> None:
        if not is_number(sync_seconds) or not 0 <= sync_seconds < float("inf"):
            raise ValueError(f"sync_seconds: expected seconds of at least 0, got {brief(sync_seconds)}")
        check_timeout(timeout, or_none=False)
        self._link = link
        self._sync_seconds = sync_seconds
        self._closing = Event()
        self._failure: Exception | None = None
        self.fetched = self.nbytes = self.lost = 0
        self.store = ParameterStore.create_mirror(self._describe(monotonic() + timeout), mode, name=name)
        with ClosedAfterError(self.store):
            self._writer = self.store.mirror_writer()
            self._thread = Thread(target=self._run, name=f"mirror of {name}", daemon=True)
            self._thread.start()

    @property
    def version(self) -> int:
        """The newest version here; 0 before the first."""
        return self.store.version

    def check(self) -> None:
        """Raises what ended the thread, if anything did: the porter failed, or gave something other than a row."""
        if self._failure is not None:
            raise self._failure

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

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                self._closing.wait(self._sync_seconds if self._fetch() else 0.0)
        except Exception as error:
            self._failure = error

    def _fetch(self) -> bool:
        """Whether a row came."""
        try:
            row = self._link.fetch(self.store.version, _ASK_S)
        except ConnectionError:
            self.lost += 1
            self._closing.wait(_RETRY_S)
            return False
        if row is None or not self._writer.put(row):
            return False
        self.fetched += 1
        self.nbytes += self.store.layout.nbytes
        return True
