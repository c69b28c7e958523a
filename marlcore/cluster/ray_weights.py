"""Weights over Ray: a porter as a named actor beside its store, and a mirror's link to it.

A row is one object of Ray's store, put there straight from the slot. Nodes that have fetched it serve the others.
"""

import asyncio
from typing import Any

from ..memory import SegmentHandle
from ..weights import ParameterStore
from .porter import Porter

_WATCH_S = 1.0  # the longest wait for a newer version, after which mirrors ask again
_ANSWER_S = 30.0  # added to a mirror's own timeout: for the answer, and for the row's transfer


class PorterActor:
    """The class of the Ray actor that `start` starts; it hosts a `Porter`. One thread serves all waiting mirrors."""

    def __init__(self, handle: SegmentHandle, every: bool = False) -> None:
        import ray

        # Read-only: it looks every 10 ms by itself, so no publication has to wake it.
        self._porter = Porter(ParameterStore.watch(handle), ray.put, every=every)
        self._watch: asyncio.Future[bool] | None = None

    @classmethod
    def start(cls, handle: SegmentHandle, name: str, *, every: bool = False, **options: Any) -> Any:
        """Starts a porter on this node; Ray restarts it when it dies.

        Args:
            handle: the home store's; the store is on the porter's node.
            name: the actor's name in this job's namespace.
            every: see `Porter`.
            options: further options of the Ray actor; `scheduling_strategy` if the store is on another node.

        Returns: the actor's handle. The actor lives as long as the handle and its job.
        """
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as OnNode

        here = OnNode(ray.get_runtime_context().get_node_id(), soft=False)
        options = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": here, **options}
        return ray.remote(cls).options(name=name, **options).remote(handle, every)

    async def describe(self) -> dict[str, Any]:
        return self._porter.describe()

    async def fetch(self, newer_than: int, timeout: float) -> list[Any] | None:
        """Returns [reference of the row], as a list so that Ray passes on the reference and not the row."""
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
    """A mirror's link to a porter by name, so that it also finds one that was restarted or replaced.

    Its methods raise ConnectionError, in one line, while the porter cannot be reached.

    Args:
        name, namespace: those of the porter's actor; by default this job's namespace.
    """

    def __init__(self, name: str, namespace: str | None = None) -> None:
        self._name = name
        self._namespace = namespace
        self._actor: Any = None

    def describe(self) -> dict[str, Any]:
        """As `Porter.describe`."""
        described: dict[str, Any] = self._get(lambda actor: actor.describe.remote(), _ANSWER_S)
        return described

    def fetch(self, newer_than: int, timeout: float) -> Any:
        """As `Porter.fetch`; the row is read-only, in this node's object store."""
        answer = self._get(lambda actor: actor.fetch.remote(newer_than, timeout), timeout + _ANSWER_S)
        return None if answer is None else self._get(lambda _: answer[0], _ANSWER_S)

    def _get(self, reference: Any, timeout: float) -> Any:
        import ray
        from ray.exceptions import RayError, RayTaskError

        if not ray.is_initialized():  # Ray would start a cluster of its own
            raise ConnectionError(f"porter {self._name}: this process is not connected to Ray")
        try:
            self._actor = self._actor or ray.get_actor(self._name, self._namespace)
            return ray.get(reference(self._actor), timeout=timeout)
        except RayTaskError:
            raise  # the porter's own failure
        except (RayError, ValueError) as error:  # ValueError: no actor has the name
            self._actor = None
            raise ConnectionError(f"porter {self._name}: {' '.join(str(error).split())}") from error
