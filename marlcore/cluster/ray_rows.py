"""Rows over Ray: an actor that hosts ingests, and a relay's link to it."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ingest import Ingest

Ints = NDArray[np.int64]


class IngestActor:
    """The class of the Ray actor: it hosts one ingest a policy, and is restarted by Ray when it dies."""

    def __init__(self, make: Callable[[], Mapping[str, Ingest]]) -> None:
        self._ingests = make()

    def open(self, name: str, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        return self._ingests[name].open(seat, epoch, lanes, spec)

    def put(self, name: str, message: NDArray[np.uint8]) -> bool:
        return self._ingests[name].put(message)


def start_ingest(make: Callable[[], Mapping[str, Ingest]], **options: Any) -> Any:
    """Starts an IngestActor on this node and returns its handle, once it has made its ingests.

    Args:
        make: makes the ingests, by policy, in the actor's process; from handles of targets and bookings.
        options: of the Ray actor, such as name, namespace, resources.
    """
    raise NotImplementedError


class RayLink:
    """A relay's link to one ingest of an IngestActor, from any process of the same Ray cluster."""

    def __init__(self, actor: Any, name: str, *, timeout: float = 60.0) -> None:
        raise NotImplementedError

    def open(self, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        raise NotImplementedError

    def send(self, message: NDArray[np.uint8]) -> "Future[bool]":
        raise NotImplementedError
