"""Moves rows and weights between a policy's learner, which has an ingest and a porter, and other machines' uplinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

from ...cluster import Bookings, Leases, Mirror, PorterActor, RayLink, Relay, WeightsLink, end_actor, start_ingest
from ...config import AssignedPolicy, Config, Crew, crews
from ...errors import LinkLost
from ...interfaces import QueueSource, ReplaySource
from ...memory import SegmentHandle
from ...queue import TrajectoryQueue
from ...replay import ReplayBuffer
from ...run import Memory, attach_transitions, transition_spec
from .ingests import Target, make_ingests


@dataclass(frozen=True)
class Address:
    """The address of a policy's learner: the names of the Ray actors of its ingest and its porter."""

    ingest: str
    porter: str
    namespace: str

    def rows(self, policy: str) -> RayLink:
        return RayLink(self.ingest, policy, namespace=self.namespace)

    def weights(self, policy: str) -> WeightsLink:
        return WeightsLink(self.porter, self.namespace)


class Nowhere:
    """Stands in for the address and the links of a learner that no machine runs now; every call raises LinkLost."""

    def rows(self, policy: str) -> Nowhere:
        return self

    weights = rows

    def open(self, *args: Any) -> NoReturn:
        raise LinkLost("the policy's learner is on no machine")

    send = describe = fetch = open


class Uplink:
    """Connects a machine to a policy's learner by a relay, which sends rows, and a mirror, which fetches weights."""

    def __init__(
        self, stack: ExitStack, policy: AssignedPolicy, config: Config, crew: Crew, description: Mapping[str, Any],
        seat: int, epoch: int,
    ) -> None:  # fmt: skip
        """`description` describes the policy's store of weights; for `seat` and `epoch`, see `Ingest.open`."""
        cluster, self.policy = config.cluster, policy
        self.address: Address | None = None  # of the policy's learner; None at first and while it is on no machine
        nowhere: Any = Nowhere()
        name, seconds = f"weights.{policy.index}", cluster.sync_seconds
        self.mirror = stack.enter_context(Mirror(nowhere, description=description, sync_seconds=seconds, name=name))
        source = source_of_rows(policy, config, crew)
        stack.callback(source.close)
        relay = Relay(
            source, nowhere, seat=seat, epoch=epoch,
            flush_seconds=cluster.flush_seconds, compress=cluster.compress,
        )  # fmt: skip
        self.relay = stack.enter_context(relay)
        self._sends = bool(crew.count)
        if self._sends:
            relay.start()
        # The handles of the policy's replay or queue, and of its parameter store, on this machine
        self.transitions, self.weights = source.handle, self.mirror.store.handle

    def move(self, address: Address | None) -> None:
        """Connects to another learner; from now on, no weights of the earlier learner arrive."""
        if address != self.address:
            self.address = address
            home: Any = address or Nowhere()
            self.mirror.move(home.weights(self.policy.name))
            self.relay.move(home.rows(self.policy.name))

    def drained(self) -> bool:
        """Returns whether all rows written here have arrived. Raises the exception that ended the relay."""
        return not self._sends or self.relay.drain(0.0)

    def check(self) -> None:
        """Raises the exception that ended the relay or the mirror, if any, such as Fenced."""
        if self.relay.error is not None:
            raise self.relay.error
        self.mirror.check()


def source_of_rows(policy: AssignedPolicy, config: Config, crew: Crew) -> ReplayBuffer | TrajectoryQueue:
    """Creates a policy's replay on a machine with actors or, if they must wait for the learner, a queue.

    The queue holds as many unread rows as actors may be ahead of the learner in a run on one machine.
    """
    queued, copies = isinstance(policy.source, QueueSource), config.actor.envs
    parts = 1 if queued else config.replay.parts
    lanes = parts * len(policy.agents) * max(1, crew.count) * copies  # a crew without actors has lanes, too
    spec, rows, name = transition_spec(policy, config), config.cluster.lane_rows, f"rows.{policy.index}"
    if isinstance(policy.source, QueueSource):
        source = policy.source
        ahead = source.ahead * source.batch_size * (source.length or 1) * crew.count // config.actors
    elif (limiter := config.limiter(policy.name, len(policy.agents) * config.lanes)) is not None:
        ahead = int(limiter.tolerance / limiter.samples_per_insert)
    else:
        return ReplayBuffer.create(spec, rows * lanes, lanes, name=name)
    return TrajectoryQueue.create(spec, rows * lanes, lanes, max_unread=max(ahead, lanes), name=name)


def serve(
    stack: ExitStack, policies: Sequence[AssignedPolicy], memory: Memory, config: Config, leases: Leases,
    namespace: str, follows: bool = False,
) -> dict[str, Address]:  # fmt: skip
    """Starts a Ray actor with these policies' ingests, and a porter for each policy; returns the learners' addresses.

    `leases` is the controller's table; with `follows`, a copy of it on another machine. Returns once all actors have
    started. Raises LinkLost: one did not start.
    """
    porters = {policy.name: start_porter(stack, memory.weights[policy.name], namespace) for policy in policies}
    targets = {
        policy.name: _target_of(stack, policy, memory.transitions[policy.name], config, follows) for policy in policies
    }
    ingest = f"marlcore-rows-{leases.handle.nonce}"
    if targets:
        make = partial(make_ingests, targets, leases.handle, follows)
        threads = max(8, (config.cluster.seats + 1) * len(targets))
        stack.callback(end_actor, start_ingest(make, threads=threads, name=ingest, namespace=namespace))
    for porter in porters.values():
        PorterActor.wait(porter, namespace)  # else actors would go on with a lost learner's weights
    return {name: Address(ingest, porter, namespace) for name, porter in porters.items()}


def start_porter(stack: ExitStack, store: SegmentHandle, namespace: str, *, every: bool = False) -> str:
    """Starts a porter of a store on this machine, and returns the porter's name; see `Porter`."""
    name = f"marlcore-weights-{store.nonce}"
    stack.callback(end_actor, PorterActor.start(store, name, every=every, namespace=namespace))
    return name


def _target_of(
    stack: ExitStack, policy: AssignedPolicy, transitions: SegmentHandle, config: Config, with_driver: bool
) -> Target:
    """Returns the target of a policy's ingest: the replay or queue, new bookings, and each seat's lanes.

    `with_driver`: whether to add a last seat, for the actors of the driver's machine.
    """
    with attach_transitions(transitions) as storage:
        bookings = stack.enter_context(Bookings.create(storage.lanes))
    parts = config.replay.parts if isinstance(policy.source, ReplaySource) else 1
    shape = len(policy.agents), config.actor.envs
    here, *senders = crews(config)
    if with_driver and here.count:
        senders.append(here)
    lanes = [crew.lanes(parts, *shape, bookings.lanes // parts) + crew.block_begins(*shape) for crew in senders]
    return type(storage), transitions, bookings.handle, [each.ravel().tolist() for each in lanes]
