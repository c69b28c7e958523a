"""Rows over Ray: a Ray actor that hosts ingests, and a relay's link to one of the ingests.

A small message travels with the call. A larger one is put into the object store, from which the ingest reads it without
a copy.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LinkLost
from ..lazy import missing
from .ingest import Ingest, IngestStats
from .relay import INLINE_BYTES

Ints = NDArray[np.int64]


class IngestActor:
    """The class of the Ray actor that `start_ingest` starts; it hosts an ingest for each policy."""

    def __init__(self, make: Callable[[], Mapping[str, Ingest]]) -> None:
        self._failure: Exception | None = None
        try:
            self._ingests = make()
        except Exception as error:
            self._failure = error  # raised by every call, since Ray passes on no exception of a constructor

    def open(self, name: str, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        """See `Ingest.open`."""
        return self._ingests_made()[name].open(seat, epoch, lanes, spec)

    def put(self, name: str, message: NDArray[np.uint8]) -> bool:
        """See `Ingest.put`."""
        return self._ingests_made()[name].put(message)

    def stats(self) -> dict[str, IngestStats]:
        """Returns the counters of each ingest since the actor's last start."""
        return {name: ingest.stats for name, ingest in self._ingests_made().items()}

    def _ingests_made(self) -> Mapping[str, Ingest]:
        if self._failure is not None:
            raise self._failure
        return self._ingests


def start_ingest(make: Callable[[], Mapping[str, Ingest]], *, threads: int = 8, **options: Any) -> Any:
    """Starts a Ray actor that hosts ingests, and returns its handle once the ingests exist; Ray restarts a dead actor.

    Args:
        make: called in the actor's process at each start; attaches to the replays or queues and their bookings by
            handle, and returns an Ingest for each policy by name.
        threads: the number of messages, each of another seat, that may wait for room at once.
        options: the Ray actor's, such as name, namespace, or `scheduling_strategy` if its memory is on another node.

    Raises: any exception of `make`. LinkLost: the actor did not start.
    """
    ray = _ray("start_ingest")
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

    here = OnNode(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here, **options}
    actor = ray.remote(IngestActor).options(max_concurrency=threads, **options).remote(make)
    try:
        ray.get(actor.stats.remote())
    except ray.exceptions.RayError as error:
        ray.kill(actor)
        raise _plain(error) from None
    return actor


def end_actor(actor: Any) -> None:
    """Kills a Ray actor, which Ray then does not restart; repeated calls are harmless."""
    _ray("end_actor").kill(actor)


class RayLink:
    """A relay's link to one ingest of an IngestActor, from any process that is connected to the same Ray cluster."""

    def __init__(self, actor: Any, name: str, *, namespace: str | None = None, timeout: float = 10.0) -> None:
        """
        Args:
            actor: the result of `start_ingest`, or the name that its options gave the actor.
            name: the policy whose ingest is meant.
            namespace: the actor's namespace, if `actor` is a name; None: this job's.
            timeout: seconds to wait for an answer, after which the link counts as lost.
        """
        self._ray = _ray("RayLink")
        self._actor, self._name, self._namespace, self._timeout = actor, name, namespace, timeout

    def open(self, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        """See Link."""
        try:
            reference = self._found().open.remote(self._name, seat, epoch, lanes, spec)
            cursor: Ints = self._ray.get(reference, timeout=self._timeout)
        except self._ray.exceptions.RayError as error:
            raise _plain(error) from None
        return cursor

    def send(self, message: NDArray[np.uint8]) -> "Future[bool]":
        """See Link."""
        try:
            carried = message if len(message) <= INLINE_BYTES else self._ray.put(message)
            arrived = self._found().put.remote(self._name, carried).future()
        except self._ray.exceptions.RayError as error:
            raise _plain(error) from None
        answer: Future[bool] = Future()
        arrived.add_done_callback(lambda done: _answer(answer, done))
        return answer

    def _found(self) -> Any:
        """Returns the actor's handle. Raises LinkLost: no actor has the name yet, or none has it any more."""
        if isinstance(self._actor, str):
            try:
                self._actor = self._ray.get_actor(self._actor, self._namespace)
            except ValueError as error:
                raise _plain(error) from None
        return self._actor


def _answer(answer: "Future[bool]", done: "Future[bool]") -> None:
    error = done.exception()
    if error is None:
        answer.set_result(done.result())
    else:
        answer.set_exception(_plain(error))


def _plain(error: BaseException) -> BaseException:
    """Returns the ingest's own exception, if Ray's error wraps one; otherwise LinkLost."""
    cause = getattr(error, "cause", None)  # of a RayTaskError
    if isinstance(cause, Exception):
        return cause
    return LinkLost(f"the ingest cannot be reached: {' '.join(str(error).split())[:200]}")


def _ray(what: str) -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing(f"marlcore.cluster.{what}", error) from None
    if not ray.is_initialized():  # Ray would start a cluster of its own
        raise LinkLost(f"{what}: this process is not connected to Ray; call ray.init first")
    return ray
