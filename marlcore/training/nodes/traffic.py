"""A policy's transitions and weights on a machine that its learner is not on, and what passes between the two."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn, Protocol

from ...closing import Closing
from ...cluster import Mirror, Relay
from ...errors import LinkLost
from ...interfaces import QueueSource
from ...queue import TrajectoryQueue
from ...replay import ReplayBuffer
from ..config import AssignedPolicy, Config, Crew
from ..record import Hold
from ..workers import PolicyBlueprint, spec_of


class Address(Protocol):
    """Where a policy's learner is: the ways to its ingest and its porter."""

    def rows(self, policy: str) -> Any: ...
    def weights(self, policy: str) -> Any: ...


class Nowhere:
    """The address, and the links, of a policy whose learner is on no machine now: relay and mirror try again."""

    def rows(self, policy: str) -> Nowhere:
        return self

    weights = rows

    def open(self, *args: Any) -> NoReturn:
        raise LinkLost("the policy's learner is on no machine")

    send = describe = fetch = open


class Traffic(Closing):
    """The relay of a crew's rows of a policy, and the mirror of the policy's weights.

    Attributes:
        home: where they lead; None while that is nowhere, as at first.
    """

    def __init__(
        self, policy: AssignedPolicy, config: Config, crew: Crew, description: Mapping[str, Any], seat: int, epoch: int
    ) -> None:
        """`description` is that of the policy's store of weights; `seat` and `epoch` are the crew's."""
        cluster, self.policy = config.cluster, policy
        self.home: Address | None = None
        with ExitStack() as stack:
            nowhere: Any = Nowhere()
            name, seconds = f"weights.{policy.index}", cluster.sync_seconds
            self.mirror = stack.enter_context(Mirror(nowhere, description=description, sync_seconds=seconds, name=name))
            self._source = source_of_rows(policy, config, crew)
            stack.callback(self._source.close)
            relay = Relay(
                self._source, nowhere, seat=seat, epoch=epoch,
                flush_seconds=cluster.flush_seconds, compress=cluster.compress,
            )  # fmt: skip
            self.relay = stack.enter_context(relay)
            if crew.count:
                relay.start()
            self._sends = bool(crew.count)
            self._stack = stack.pop_all()

    def blueprint(self, hold: Hold | None = None) -> PolicyBlueprint:
        """The policy for the workers of this machine; with a hold on its checkpoint where they may read it."""
        return PolicyBlueprint(
            **vars(self.policy),
            checkpoint=hold.checkpoint if hold else Path(),
            transitions=self._source.handle,
            weights=self.mirror.store.handle,
            queued=isinstance(self._source, TrajectoryQueue),
            hold=hold,
        )

    def move(self, home: Address | None) -> None:
        """Has rows and weights pass from and to another home; after the return, no weights of the earlier one come."""
        if home != self.home:
            self.home = home
            address: Any = home or Nowhere()
            self.mirror.move(address.weights(self.policy.name))
            self.relay.move(address.rows(self.policy.name))

    def drained(self) -> bool:
        """Whether all rows that were written here have arrived. Raises what ended the relay."""
        return not self._sends or self.relay.drain(0.0)

    def check(self) -> None:
        """Raises what ended the relay or the mirror, such as Fenced."""
        if self.relay.error is not None:
            raise self.relay.error
        self.mirror.check()

    def close(self) -> None:
        """Ends the traffic, and removes the segments."""
        self._stack.close()


def source_of_rows(policy: AssignedPolicy, config: Config, crew: Crew) -> ReplayBuffer | TrajectoryQueue:
    """A policy's transitions on a machine. Where the learner holds actors back, a queue whose writers wait for a relay.

    So many rows may be on their way as the run on one machine would have its actors ahead.
    """
    queued, copies = isinstance(policy.source, QueueSource), config.actor.envs
    parts = 1 if queued else config.replay.parts
    lanes = parts * len(policy.agents) * max(1, crew.count) * copies  # without actors, it has a place all the same
    spec, rows, name = spec_of(policy, config), config.cluster.lane_rows, f"rows.{policy.index}"
    if isinstance(policy.source, QueueSource):
        source = policy.source
        ahead = source.ahead * source.batch_size * (source.length or 1) * crew.count // config.actors
    elif (limiter := config.limiter(policy.name, len(policy.agents) * config.lanes)) is not None:
        ahead = int(limiter.tolerance / limiter.samples_per_insert)
    else:
        return ReplayBuffer.create(spec, rows * lanes, lanes, name=name)
    return TrajectoryQueue.create(spec, rows * lanes, lanes, max_unread=max(ahead, lanes), name=name)
