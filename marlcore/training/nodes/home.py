"""The learners' end of the traffic with other machines: bookings in shared memory, an ingest and porters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from ...closing import Closing
from ...cluster import Bookings, Ingest, Leases, PorterActor, RayLink, WeightsLink, end_actor, start_ingest
from ...interfaces import ReplaySource
from ...memory import SegmentHandle
from ...queue import TrajectoryQueue
from ...replay import ReplayBuffer
from ..config import Config, crews
from ..workers import PolicyBlueprint, attach_storage


@dataclass(frozen=True)
class Target:
    """Where an ingest writes: a policy's transitions, and the lanes there of each seat, in the order of its own."""

    transitions: SegmentHandle
    queued: bool
    bookings: SegmentHandle
    seats: Sequence[Sequence[int]]

    @classmethod
    def of(cls, policy: PolicyBlueprint, config: Config, stack: ExitStack, also_own: bool) -> Target:
        """That of a policy, with new bookings; after the cluster's seats, with one for the driver's actors."""
        with attach_storage(policy) as storage:
            bookings = stack.enter_context(Bookings.create(storage.lanes))
        parts = config.replay.parts if isinstance(policy.source, ReplaySource) else 1
        shape = len(policy.agents), config.actor.envs
        own, *seats = crews(config)
        senders = [*seats, own] if also_own and own.count else seats
        lanes = [crew.lanes(parts, *shape, bookings.lanes // parts) + crew.block_begins(*shape) for crew in senders]
        return cls(policy.transitions, policy.queued, bookings.handle, [each.ravel().tolist() for each in lanes])


def make_ingests(targets: Mapping[str, Target], leases: SegmentHandle, follows: bool) -> dict[str, Ingest]:
    """The ingests of a home, by policy, in the process that takes the rows."""
    table = Leases.watch(leases)
    return {
        name: Ingest(
            (TrajectoryQueue if target.queued else ReplayBuffer).attach(target.transitions),
            Bookings.attach(target.bookings),
            target.seats,
            holds=table.allows if follows else table.check,
        )
        for name, target in targets.items()
    }


@dataclass(frozen=True)
class RayAddress:
    """The ways to a policy's learner, for other machines: the names of its ingest and of its porter."""

    ingest: str
    porter: str
    namespace: str

    def rows(self, policy: str) -> RayLink:
        return RayLink(self.ingest, policy, namespace=self.namespace)

    def weights(self, policy: str) -> WeightsLink:
        return WeightsLink(self.porter, self.namespace)


class Home(Closing):
    """The learners' end on one machine: one ingest of all its policies, and a porter of each.

    Attributes:
        addresses: of the policies, by name.
        opponents: the way to the pool of opponents, in order of admission; None without one.
    """

    def __init__(
        self, policies: Sequence[PolicyBlueprint], config: Config, leases: Leases, namespace: str,
        follows: bool = False, pool: SegmentHandle | None = None,
    ) -> None:  # fmt: skip
        """`follows`: the leases follow the controller's, which are on another machine."""
        with ExitStack() as stack:
            targets = {policy.name: Target.of(policy, config, stack, follows) for policy in policies}
            ingest = f"marlcore-rows-{leases.handle.nonce}"
            if targets:
                make = partial(make_ingests, targets, leases.handle, follows)
                threads = max(8, (config.cluster.seats + 1) * len(targets))
                actor = start_ingest(make, threads=threads, name=ingest, namespace=namespace)
                stack.callback(end_actor, actor)

            def porter(store: SegmentHandle, every: bool = False) -> str:
                name = f"marlcore-weights-{store.nonce}"
                stack.callback(end_actor, PorterActor.start(store, name, every=every, namespace=namespace))
                return name

            self.addresses = {each.name: RayAddress(ingest, porter(each.weights), namespace) for each in policies}
            self.opponents = None if pool is None else WeightsLink(porter(pool, every=True), namespace)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()
