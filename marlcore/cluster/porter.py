"""The porter: takes the newest weights out of a store, for the nodes that ask, in a process that is not the learner."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..weights import ParameterStore


class Porter:
    """Gives out the newest row of a store: one copy a publication that anybody wants, however many ask.

    Its methods may be called by many threads at once. A Porter is itself the link of a mirror in the same process.

    Args:
        store: the home store.
        put: copies a row, uint8 [layout.nbytes], out of shared memory; returns what `fetch` gives out.

    Attributes:
        version: of the newest copy; 0 before the first.
        copies: rows that were copied; `nbytes`: their bytes; `requests`: rows that were given out.
    """

    def __init__(self, store: ParameterStore, put: Callable[[Any], Any] = np.copy) -> None:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """The store's description, for `ParameterStore.create_mirror`; plain JSON."""
        raise NotImplementedError

    def fetch(self, newer_than: int, timeout: float) -> Any:
        """The newest row, once it is newer than that version; None if none is within `timeout` seconds."""
        raise NotImplementedError
