"""Weights over Ray: a porter as a named actor beside its store, and the link of a mirror to it."""

from typing import Any

from ..memory import SegmentHandle


class PorterActor:
    """A porter as a Ray actor; make it with `start`. Each copy is one object of Ray's store, which nodes share."""

    @staticmethod
    def start(handle: SegmentHandle, name: str, **options: Any) -> Any:
        """Starts it on this node, under this name in this job's namespace; Ray restarts it when it dies.

        Args:
            handle: of the home store, on this node.
            options: further ones of `ray.remote`, such as `scheduling_strategy` where the store is on another node.

        Returns: the actor's handle; the actor lives while it, or the job, does.
        """
        raise NotImplementedError


class WeightsLink:
    """A mirror's link to the porter of this name. It finds a restarted or replaced porter by itself.

    Args:
        name, namespace: of the porter's actor.
    """

    def __init__(self, name: str, namespace: str | None = None) -> None:
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """As `Porter.describe`. Raises ConnectionError: the porter cannot be reached now."""
        raise NotImplementedError

    def fetch(self, newer_than: int, timeout: float) -> Any:
        """As `Porter.fetch`: a read-only row in this node's object store. Raises ConnectionError: as `describe`."""
        raise NotImplementedError
