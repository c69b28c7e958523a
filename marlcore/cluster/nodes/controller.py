"""The controller, in the driver: starts agents, polls them, divides the steps among them, and replaces lost agents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from ...cluster import Leases, WeightsLink
from ...config import node_names
from ...processes import Control, Telemetry, failure_of
from ...run import Memory, Remote, RunSpec, deal_steps
from ...weights import ParameterStore
from .placements import ActorPlacement, LearnerPlacement, Placement, PlacementContext
from .ray_cluster import AgentLost, RayCluster
from .uplink import Uplink, serve, start_porter

LOOK_S = 1.0  # seconds between searches for free machines


class Controller(Remote):
    """Controls a run's actors and learners on other machines; closing the stack ends them."""

    def __init__(
        self, stack: ExitStack, cluster: RayCluster, spec: RunSpec, memory: Memory, control: Control,
        telemetry: Telemetry, uplinks: Mapping[str, Uplink],
    ) -> None:  # fmt: skip
        """`uplinks`: by policy, this machine's uplink to a learner on another machine."""
        self._cluster, self._control, self._uplinks = cluster, control, uplinks
        self._config = config = spec.config
        self._looked = 0.0
        names = self._dealt_to = node_names(config)  # at first, every node has a share of the steps
        seats, lease_seconds = config.cluster.seats, config.cluster.lease_seconds
        apart = [policy for policy in spec.policies if policy.name in uplinks]
        here = [policy for policy in spec.policies if policy.name not in uplinks]
        games = next(iter(memory.league), None)
        self._leases = stack.enter_context(Leases.create(seats + len(uplinks), lease_seconds))
        addresses = serve(stack, here, memory, config, self._leases, cluster.namespace)
        opponents = None
        if games is not None:
            opponents = WeightsLink(start_porter(stack, games.pool, cluster.namespace, every=True), cluster.namespace)
        stack.callback(cluster.end_agents)
        attached = {name: ParameterStore.attach(handle) for name, handle in memory.weights.items()}
        stores = {name: stack.enter_context(store) for name, store in attached.items()}
        results = None if games is None else stack.enter_context(Telemetry.attach(games.results))
        context = PlacementContext(
            stack, cluster, self._leases, spec, memory, control, telemetry, stores, {**addresses}, opponents, results
        )
        self.actors = [ActorPlacement(name, number, context) for number, name in enumerate(names)]
        self.learners = [
            LearnerPlacement(number, policy, uplinks[policy.name], partial(self._newest, policy.name), context)
            for number, policy in enumerate(apart, seats)
        ]
        self._seats: list[Placement] = [*self.actors, *self.learners]
        for agent in cluster.agents:  # they have checked their machines
            next(seat for seat in self._seats if seat.role is agent.role and seat.agent is None).begin(agent)
        self._deal()

    @property
    def done(self) -> bool:
        ended = all(seat.done for seat in self.actors if seat.epoch)
        arrived = all(uplink.drained() for uplink in self._uplinks.values())
        return ended and arrived and self._control.steps >= self._config.total_steps

    @property
    def unfinished(self) -> list[str]:
        return [seat.name for seat in self.learners if seat.unfinished]

    def tick(self) -> None:
        for seat in self._seats:
            try:
                seat.poll()
            except (AgentLost, ValueError) as error:  # ValueError: the machine cannot do the work
                seat.lose(str(error))
        for number in self._leases.expire():
            self._seats[number].lose(f"it was silent for {self._leases.lease_seconds:g} s")
        for name, uplink in self._uplinks.items():
            try:
                uplink.check()
            except Exception as error:  # the exception that ended a relay or a mirror
                raise failure_of(f"rows and weights of {name}", error) from error
        self._fill()
        self._deal()

    def _newest(self, policy: str) -> int | None:
        """Returns the weights' highest version on all machines; None while an old learner may still send a version."""
        answers = [seat.status for seat in self.actors if seat.epoch]
        if any(status.addresses[policy] is not None for status in answers):
            return None
        return max(self._uplinks[policy].mirror.version, *(status.versions.get(policy, 0) for status in answers), 0)

    def _fill(self) -> None:
        """Starts an agent for each empty seat for which a machine is free, such as a machine that has just joined."""
        control, seats = self._control, self._seats
        if control.stopping:
            seats = [*self.learners] if control.finishing else []
        empty, now = [seat for seat in seats if seat.is_due], time.monotonic()
        if not empty or now - self._looked < LOOK_S:
            return
        self._looked, nodes = now, self._cluster.nodes()
        for seat in sorted(empty, key=lambda seat: isinstance(seat, ActorPlacement)):  # learners first
            if (machine := next(self._cluster.free(seat.role, nodes), None)) is not None:
                seat.start(machine)
            elif isinstance(seat, LearnerPlacement):
                seat.say_waiting()

    def _deal(self) -> None:
        """Divides the run's steps again if the set of working nodes has changed."""
        working = [seat.name for seat in self.actors if seat.works]
        if working != self._dealt_to:
            self._dealt_to = working
            deal_steps(self._control, self._config, working)
