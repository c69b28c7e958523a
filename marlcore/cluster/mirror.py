"""The mirror: keeps a store of a node at the newest version of its home store."""

from typing import Any, Protocol

from ..closing import Closing
from ..weights import ParameterStore


class WeightsSource(Protocol):
    """Where a mirror gets its rows: a `Porter`, or a link to one. Each may raise ConnectionError: it is lost now."""

    def describe(self) -> dict[str, Any]: ...
    def fetch(self, newer_than: int, timeout: float) -> Any: ...


class Mirror(Closing):
    """A store of this node that serves the versions of its home store; a context manager.

    A thread fetches the newest row whenever there is a newer one, never a backlog, and publishes it here under the same
    version. The node's actors subscribe to `store` as to any other. A lost link is tried again until `close`.

    Args:
        link: to the home store's porter.
        mode: slots of the store here, at least two.
        sync_seconds: the least time between two fetches.
        timeout: seconds to wait for the home's description.

    Attributes:
        store: the store here.
        version: its newest version; 0 before the first.
        fetched, nbytes, lost: rows fetched, their bytes, and times that the link was lost.

    Raises: ConnectionError: no description of the home store came within `timeout`.
    """

    def __init__(
        self,
        link: WeightsSource,
        *,
        mode: str = "double_buffer",
        sync_seconds: float = 0.0,
        timeout: float = 60.0,
        name: str = "weights",
    ) -> None:
        raise NotImplementedError

    store: ParameterStore

    def close(self) -> None:
        """Stops the thread and closes the store."""
        raise NotImplementedError
