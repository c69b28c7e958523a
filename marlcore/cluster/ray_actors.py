"""Rows and weights over Ray: the actors that host ingests and porters, and the links of relays and mirrors to them.

A small message is an argument of the call, a small row of weights its result. Larger ones are put into Ray's object
store, from which other processes read them without a copy; nodes that have fetched a row serve it to other nodes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import LaneBusy, LinkLost, MarlcoreError, SegmentNotFound
from ..lazy import missing
from ..memory import SegmentHandle
from ..weights import ParameterStore
from .ingest import Ingest, IngestStats
from .mirror import Porter
from .relay import INLINE_BYTES

_WATCH_S = 1.0  # seconds that a porter waits for a newer version, after which mirrors ask again
_ANSWER_S = 30.0  # seconds for the answer and for the row's transfer, added to a mirror's own timeout

Ints = NDArray[np.int64]

log = logging.getLogger(__name__)


class IngestActor:
    """The class of the Ray actor that `start_ingest` starts; it hosts an ingest for each policy."""

    def __init__(self, make: Callable[[], Mapping[str, Ingest]]) -> None:
        self._make, self._making = make, Lock()
        self._ingests: Mapping[str, Ingest] | None = None

    def open(self, name: str, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        """See `Ingest.open`."""
        return self._ingest(name).open(seat, epoch, lanes, spec)

    def put(self, name: str, message: NDArray[np.uint8]) -> bool:
        """See `Ingest.put`."""
        return self._ingest(name).put(message)

    def stats(self) -> dict[str, IngestStats]:
        """Returns the counters of each ingest since the actor's last start. Raises any exception of `make`."""
        return {name: ingest.stats for name, ingest in self._ingests_made().items()}

    def _ingest(self, name: str) -> Ingest:
        """Returns a relay's ingest. Raises LinkLost, so that the relay tries again, if it cannot be made yet."""
        try:
            return self._ingests_made()[name]
        except SegmentNotFound:  # also an OSError
            raise
        except (OSError, MarlcoreError) as error:
            # LaneBusy: this actor was restarted before the kernel had ended its old process. A plain MarlcoreError: no
            # descriptor is free.
            if isinstance(error, MarlcoreError) and type(error) not in (LaneBusy, MarlcoreError):
                raise
            log.warning("%s", why := f"the ingest is not ready: {error}")
            raise LinkLost(why) from None

    def _ingests_made(self) -> Mapping[str, Ingest]:
        # Not in the constructor, whose exceptions Ray does not pass on; after an exception, the next call tries again.
        with self._making:
            if self._ingests is None:
                self._ingests = self._make()
            return self._ingests


def start_ingest(make: Callable[[], Mapping[str, Ingest]], *, threads: int = 8, **options: Any) -> Any:
    """Starts a Ray actor that hosts ingests, and returns its handle once they exist. Ray restarts it if it dies.

    Args:
        make: a function that the actor's process calls after each start, and again if it raised. It attaches to the
            replays or queues and their bookings by handle, and returns a dict from each policy's name to its Ingest.
        threads: the number of seats whose messages may wait for room at the same time.
        options: options of the Ray actor, such as `name` or `namespace`; `scheduling_strategy` if the replays or
            queues are on another node.

    Raises: any exception of `make`. LinkLost: the actor did not start.
    """
    ray = _ray("start_ingest")
    actor = _started(ray, IngestActor, make, max_concurrency=threads, **options)
    try:
        ray.get(actor.stats.remote())
    except ray.exceptions.RayError as error:
        ray.kill(actor)
        raise _plain(ray, error, "the ingest") from None
    return actor


def end_actor(actor: Any) -> None:
    """Kills a Ray actor for good, without a restart by Ray; repeated calls are harmless."""
    _ray("end_actor").kill(actor)


class RayLink:
    """A relay's link to one ingest of an IngestActor, from any process that is connected to the same Ray cluster."""

    def __init__(self, actor: Any, name: str, *, namespace: str | None = None, timeout: float = 10.0) -> None:
        """
        Args:
            actor: the result of `start_ingest`, or the actor's `name` among its options.
            name: the name of the policy whose ingest receives the rows.
            namespace: the actor's namespace, if `actor` is a name; by default this job's.
            timeout: seconds to wait for an answer, after which the link counts as lost.
        """
        self._ray = _ray("RayLink")
        self._actor, self._name, self._namespace, self._timeout = actor, name, namespace, timeout

    def open(self, seat: int, epoch: int, lanes: int, spec: dict[str, Any]) -> Ints:
        """See Link."""
        with _reaching(self._ray, "the ingest"):
            reference = self._found().open.remote(self._name, seat, epoch, lanes, spec)
            cursor: Ints = self._ray.get(reference, timeout=self._timeout)
        return cursor

    def send(self, message: NDArray[np.uint8]) -> "Future[bool]":
        """See Link."""
        with _reaching(self._ray, "the ingest"):
            carried = message if len(message) <= INLINE_BYTES else self._ray.put(message)
            arrived = self._found().put.remote(self._name, carried).future()
        answer: Future[bool] = Future()

        def pass_on(done: "Future[bool]") -> None:
            if (error := done.exception()) is None:
                answer.set_result(done.result())
            else:
                answer.set_exception(_plain(self._ray, error, "the ingest"))

        arrived.add_done_callback(pass_on)
        return answer

    def _found(self) -> Any:
        if isinstance(self._actor, str):
            self._actor = _named(self._ray, self._actor, self._namespace, "the ingest")
        return self._actor


class PorterActor:
    """The class of the Ray actor that `start` starts; it hosts a `Porter`. One thread serves all waiting mirrors."""

    def __init__(self, handle: SegmentHandle, every: bool = False) -> None:
        import ray

        # Attached read-only, the porter polls every 10 ms, and publishers need not wake it.
        store = ParameterStore.watch(handle)
        # Another node's first row out of Ray's object store may take a second.
        put = np.copy if store.layout.nbytes <= INLINE_BYTES else ray.put
        self._porter = Porter(store, put, every=every)
        self._watch: asyncio.Future[bool] | None = None

    @classmethod
    def start(cls, handle: SegmentHandle, name: str, *, every: bool = False, **options: Any) -> Any:
        """Starts a porter, by default on this node; Ray restarts a porter that dies.

        Args:
            handle: the handle of the home store, which must be on the porter's node.
            name: the actor's name in this job's namespace.
            every: see `Porter`.
            options: further options of the Ray actor, such as `scheduling_strategy` if the store is on another node.

        Returns: the actor's handle. The actor ends when its handle is dropped, or when the job ends.
        """
        return _started(_ray("PorterActor"), cls, handle, every, name=name, **options)

    @staticmethod
    def wait(name: str, namespace: str | None = None) -> None:
        """Returns once this porter has started, however long that takes. Raises LinkLost: it did not start."""
        ray, host = _ray("PorterActor"), f"the porter {name}"
        with _reaching(ray, host):
            ray.get(_named(ray, name, namespace, host).stats.remote())

    async def describe(self) -> dict[str, Any]:
        return self._porter.describe()

    async def fetch(self, newer_than: int, timeout: float) -> list[Any] | None:
        """Returns a list with a row or, if it is large, its reference, which Ray would replace by the row; or None."""
        store = self._porter.store
        if store.version <= newer_than:
            if self._watch is None or self._watch.done():
                self._watch = asyncio.ensure_future(asyncio.to_thread(store.wait, store.version, _WATCH_S))
            await asyncio.wait([self._watch], timeout=timeout)
        row = self._porter.fetch(newer_than, 0.0)
        return None if row is None else [row]

    async def stats(self) -> dict[str, int]:
        """Returns the porter's attributes version, copies, nbytes and requests."""
        return {name: getattr(self._porter, name) for name in ("version", "copies", "nbytes", "requests")}


class WeightsLink:
    """A mirror's link to a porter by name, so that the link also finds a porter that was restarted or replaced.

    Its methods raise ConnectionError, in one line, while the porter cannot be reached.

    Args:
        name, namespace: the name and the namespace of the porter's actor; by default this job's namespace.
    """

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self._name, self._namespace = name, namespace
        self._actor: Any = None
        self._coming: list[Any] | None = None  # a porter's answer whose row has not been returned

    def describe(self) -> dict[str, Any]:
        """See `Porter.describe`."""
        with self._reached() as (ray, actor):
            described: dict[str, Any] = ray.get(actor.describe.remote(), timeout=_ANSWER_S)
        return described

    def fetch(self, newer_than: int, timeout: float) -> Any:
        """See `Porter.fetch`; the row is read-only. A large one, over 90,000 bytes, is in this node's object store.

        If a large row takes longer than 30 s over a slow network, a later call returns it, before newer rows.
        """
        with self._reached() as (ray, actor):
            if self._coming is None:
                self._coming = ray.get(actor.fetch.remote(newer_than, timeout), timeout=timeout + _ANSWER_S)
            if self._coming is None:
                return None
            (row,) = self._coming
            if not isinstance(row, np.ndarray):
                if not ray.wait([row], timeout=_ANSWER_S)[0]:
                    return None
                row = ray.get(row, timeout=_ANSWER_S)
            self._coming = None
            return row

    @contextmanager
    def _reached(self) -> Iterator[tuple[Any, Any]]:
        """Lends the module ray and the porter's actor; translates Ray's errors, and then forgets the actor."""
        ray, host = _ray("WeightsLink"), f"the porter {self._name}"
        try:
            with _reaching(ray, host):
                self._actor = self._actor or _named(ray, self._name, self._namespace, host)
                yield ray, self._actor
        except Exception:
            self._actor = self._coming = None
            raise


def _started(ray: Any, kind: type, *args: Any, **options: Any) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

    here = OnNode(ray.get_runtime_context().get_node_id(), soft=False)
    options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here, **options}
    return ray.remote(kind).options(**options).remote(*args)


def _named(ray: Any, name: str, namespace: str | None, host: str) -> Any:
    """Returns the handle of the actor of this name. Raises LinkLost if no actor has it now."""
    try:
        return ray.get_actor(name, namespace)
    except ValueError as error:
        raise _plain(ray, error, host) from None


@contextmanager
def _reaching(ray: Any, host: str) -> Iterator[None]:
    """Passes on exceptions that the actor's method raised; turns Ray's errors into LinkLost."""
    try:
        yield
    except (ray.exceptions.RayError, OSError) as error:  # OSError: this node's raylet is dead
        raise _plain(ray, error, host) from None


def _plain(ray: Any, error: BaseException, host: str) -> BaseException:
    """Returns the exception of the actor's method that Ray's error wraps, or else LinkLost."""
    cause = getattr(error, "cause", None)  # of a RayTaskError
    if isinstance(cause, ray.exceptions.RayError):
        error = cause  # Ray failed the method, for example since an object store is full for a moment
    elif isinstance(cause, Exception):
        return cause
    return LinkLost(f"{host} cannot be reached: {' '.join(str(error).split())[:200]}")


def _ray(name: str) -> Any:
    """Returns the module ray. `name` is the caller, for errors. Raises LinkLost if this process is not connected."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise missing(f"marlcore.cluster.{name}", error) from None
    if not ray.is_initialized():  # Ray would start a cluster of its own
        raise LinkLost(f"{name}: this process is not connected to Ray; call ray.init first")
    return ray
