"""The learners' end of the traffic with other machines: leases and bookings in shared memory, an ingest and porters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...closing import Closing
from ...cluster import Bookings, Ingest, Leases, PorterActor, RayLink, WeightsLink, start_ingest
from ...interfaces import ReplaySource
from ...memory import SegmentHandle
from ...queue import TrajectoryQueue
from ...replay import ReplayBuffer
from ..config import Config, crews
from ..workers import Blueprint, PolicyBlueprint, attach_storage
from .fleet import Fleet


@dataclass(frozen=True)
class Target:
    """Where an ingest writes: a policy's transitions, and the lanes there of each seat."""

    transitions: SegmentHandle
    queued: bool
    bookings: SegmentHandle
    seats: Sequence[range]

    @classmethod
    def of(cls, policy: PolicyBlueprint, config: Config, stack: ExitStack) -> Target:
        """That of a policy, with new bookings."""
        with attach_storage(policy) as storage:
            bookings = stack.enter_context(Bookings.create(storage.lanes))
        parts = config.replay.parts if isinstance(policy.source, ReplaySource) else 1
        shape = parts, len(policy.agents), config.actor.envs
        begins = [(crew.block_begins(*shape), crew.lanes(*shape).size) for crew in crews(config)[1:]]
        return cls(policy.transitions, policy.queued, bookings.handle, [range(first, first + n) for first, n in begins])


def make_ingests(targets: Mapping[str, Target], leases: SegmentHandle) -> dict[str, Ingest]:
    """The ingests of a run, by policy, in the process that takes the rows."""
    holds = Leases.watch(leases).check
    return {
        name: Ingest(
            (TrajectoryQueue if target.queued else ReplayBuffer).attach(target.transitions),
            Bookings.attach(target.bookings),
            target.seats,
            holds=holds,
        )
        for name, target in targets.items()
    }


@dataclass(frozen=True)
class RayLinks:
    """The ways to the learners' end, for agents: one ingest of all policies, and a porter of each."""

    ingest: Any
    porters: Mapping[str, str]  # their names
    namespace: str

    def rows(self, policy: str) -> RayLink:
        return RayLink(self.ingest, policy)

    def weights(self, policy: str) -> WeightsLink:
        return WeightsLink(self.porters[policy], self.namespace)


class Home(Closing):
    """The learners' end, on their machine."""

    def __init__(self, blueprint: Blueprint, fleet: Fleet) -> None:
        config = blueprint.config
        with ExitStack() as stack:
            self.leases = stack.enter_context(Leases.create(config.cluster.seats, config.cluster.lease_seconds))
            targets = {policy.name: Target.of(policy, config, stack) for policy in blueprint.policies}
            threads = max(8, config.cluster.seats * len(targets))
            ingest = start_ingest(partial(make_ingests, targets, self.leases.handle), threads=threads)
            stack.callback(fleet.kill, ingest)
            porters = {policy.name: f"marlcore-{policy.weights.nonce}" for policy in blueprint.policies}
            for policy in blueprint.policies:
                porter = PorterActor.start(policy.weights, porters[policy.name])
                stack.callback(fleet.kill, porter)
            self.links = RayLinks(ingest, porters, fleet.namespace)
            self._stack = stack.pop_all()

    def close(self) -> None:
        self._stack.close()
