"""Placements: the controller's side of agents on other machines. A placement calls its agent and replaces lost ones."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import cloudpickle

from ...cluster import Leases, WeightsLink
from ...config import EVALUATOR, AssignedPolicy, learner_names
from ...errors import WorkerFailed
from ...processes import BEGUN, DONE, EPISODES, READY, RESTARTS, SHARE, STEPS, UPDATES, Control, Reporter, Telemetry
from ...run import Memory, RunSpec
from ...self_play import report_result
from ...weights import ParameterStore
from .actors import ActorNode, ActorOrders, Status
from .learners import LearnerNode, LearnerOrders, LearnerStatus
from .program import SUPERVISOR
from .ray_cluster import START_S, AgentHandle, AgentLost, Machine, RayCluster, Role
from .uplink import Address, Uplink

BEATS_A_LEASE = 8  # calls of `beat` per `lease_seconds`, so that a lease survives some late calls
BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0  # seconds before the next agent; doubled after each agent that did no work
FIGURES_S = 1.0  # seconds between reports of the metrics of a node's uplinks

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlacementContext:
    """The objects that all placements of a run share."""

    stack: ExitStack  # closes the placements' resources
    cluster: RayCluster
    leases: Leases
    spec: RunSpec
    memory: Memory
    control: Control
    telemetry: Telemetry
    stores: Mapping[str, ParameterStore]  # by policy: the weights on this machine
    addresses: dict[str, Address | None]  # by policy: the learner's address, None while it is on no machine
    opponents: WeightsLink | None  # the link to the pool of opponents, in self-play
    results: Telemetry | None  # of games, in self-play


class Placement(ABC):
    """A place for an agent. It has the name of a worker of the run, and keeps this worker's counters."""

    loss = ""  # the consequence of a lost agent, in words, for the log

    def __init__(self, name: str, number: int, role: Role, context: PlacementContext) -> None:
        """`number` is this place's seat in `context.leases`."""
        self.name, self.number, self.role, self.context = name, number, role, context
        self.agent: AgentHandle | None = None
        self.epoch = 0  # the agent's epoch, once it has begun
        self.has_failed = False  # whether a worker of the agent failed for good
        self.control, self._leases = context.control, context.leases
        self.counters = self.control.workers[name]
        self.reporter = context.stack.enter_context(closing(context.telemetry.reporter(name)))
        self._called = 0.0
        self._failures = 0  # number of agents lost in a row before they did any work
        self._due = 0.0  # the earliest time for the next agent
        self._lost = 0  # number of all lost agents

    @property
    def is_due(self) -> bool:
        """Whether the place is empty and its next agent may start."""
        return self.agent is None and time.monotonic() >= self._due

    @property
    def works(self) -> bool:
        """Whether the place has an agent that has begun, or that has checked its machine and may begin."""
        return self.epoch > 0 or (self.agent is not None and not self.agent.is_awaited)

    def start(self, machine: Machine) -> None:
        """Starts an agent on a machine; it first checks the machine, and begins later."""
        self.agent, self.epoch, self._called = self.context.cluster.start(machine, self.role), 0, time.monotonic()

    def begin(self, agent: AgentHandle) -> None:
        """Grants the lease to an agent that has checked its machine, and tells it to begin."""
        self.agent, self.epoch, self._called = agent, self._leases.grant(self.number), time.monotonic()
        agent.call("begin", cloudpickle.dumps(self.work()), self.orders(), self._leases.lease_seconds)

    def poll(self) -> None:
        """Takes the agent's answer if it has come, and makes the next call if that is due.

        Raises AgentLost or ValueError if the agent is lost or its machine cannot do the work; WorkerFailed if a worker
        of the agent failed for good.
        """
        now, agent = time.monotonic(), self.agent
        if agent is None:
            return
        if agent.has_answered():
            if not self.epoch:
                agent.take_check()
                return  # the agent begins at the next poll, when it has its share of the steps
            answer = agent.answer()
            if not self._leases.renew(self.number, self.epoch):
                raise AgentLost("its lease had ended")
            if answer is not None:
                self.receive(agent, answer)
        if not self.epoch:
            if not agent.is_awaited and self.may_begin():
                self.begin(agent)
            elif now - self._called > START_S:
                raise AgentLost(f"it did not start within {START_S:g} s")
        elif not agent.is_awaited and now - self._called >= self._leases.lease_seconds / BEATS_A_LEASE:
            self._called = now
            agent.call("beat", self.orders())

    def receive(self, agent: AgentHandle, status: Any) -> None:
        if (failed := status.failed) is not None:
            if failed.worker == SUPERVISOR:  # the agent's program was killed
                raise AgentLost(failed.traceback)
            self.has_failed = True
            where = f"{failed.worker} on {self.name}, {agent.machine.host}"
            raise WorkerFailed(where, failed.reason, failed.traceback)
        for metric in status.metrics:
            self.reporter.report(metric)
        if self.take(status):
            self._failures = 0

    def lose(self, why: str) -> None:
        """Gives up a lost agent: ends its lease, kills the agent, and sets the time of the next agent's start."""
        agent, self.agent = self.agent, None
        if agent is None:
            return
        self._leases.fence(self.number)
        log.warning("%s on %s is lost (%s); %s", self.name, agent.machine.host, why, self.loss)
        self._due = time.monotonic() + min(BACKOFF_S * 2**self._failures, LONGEST_BACKOFF_S)
        self._failures, self._lost, self.epoch = self._failures + 1, self._lost + 1, 0
        self.counters.store(READY, 0)
        self.count_restarts(0)
        self.context.cluster.discard(agent)

    def count_restarts(self, here: int) -> None:
        """Sets the place's restarts: its lost agents, plus `here`, the workers that the present agent has restarted."""
        self.control.notes[self.name].store(RESTARTS, self._lost + here)

    def may_begin(self) -> bool:
        """Returns whether an agent that has checked its machine may begin."""
        return True

    @abstractmethod
    def work(self) -> Callable[..., Any]:
        """Returns the function that makes the machine's part of the run, called with an ExitStack and `orders()`."""

    @abstractmethod
    def orders(self) -> Any:
        """Returns the orders that each call passes to the agent."""

    @abstractmethod
    def take(self, status: Any) -> bool:
        """Adds a status to the run's counters and metrics; returns whether the agent has done work."""


class ActorPlacement(Placement):
    """The place of one machine's actors; if the machine is lost, other machines take its share of the steps."""

    loss = "other machines take its share of the steps"

    def __init__(self, name: str, number: int, context: PlacementContext) -> None:
        super().__init__(name, number, context.cluster.acting, context)
        self.status, self.asked = Status(), 0  # the agent's last status, and the share of steps in the last orders
        self._taken = 0  # steps of earlier agents
        self._counted = 0.0, 0.0, 0.0  # time, rows and bytes of the last figures
        self._games: Reporter | None = None
        if context.results is not None:
            self._games = context.stack.enter_context(closing(context.results.reporter(name)))

    @property
    def share(self) -> int:
        return 0 if self.control.stopping else self.control.notes[self.name].load(SHARE)

    @property
    def done(self) -> bool:
        """Whether the agent has taken its present share of steps, and its rows have arrived."""
        return self.status.done and self.asked == self.share

    def begin(self, agent: AgentHandle) -> None:
        self._taken, self._counted = self.counters.load(STEPS), (time.monotonic(), 0.0, 0.0)
        self.status = Status(steps=self._taken, addresses={**self.context.addresses})
        super().begin(agent)

    def work(self) -> Callable[..., ActorNode]:
        spec = self.context.spec
        return partial(
            ActorNode,
            spec=spec,
            seat=self.number,
            epoch=self.epoch,
            taken=self._taken,
            elapsed=time.monotonic() - self.context.memory.began,
            descriptions={name: store.description for name, store in self.context.stores.items()},
            opponents=self.context.opponents,
        )

    def orders(self) -> ActorOrders:
        control, self.asked = self.control, self.share
        evaluated = control.workers[EVALUATOR].load(BEGUN) if EVALUATOR in control.workers else 0
        others = control.steps - self.counters.load(STEPS)
        return ActorOrders(self.asked, others, {**self.context.addresses}, evaluated)

    def receive(self, agent: AgentHandle, status: Status) -> None:
        for opponent, result in status.results:  # first, since these games count even if the agent has failed
            assert self._games is not None
            report_result(self._games, opponent, result)
        super().receive(agent, status)

    def take(self, status: Status) -> bool:
        self.counters.store(STEPS, status.steps)
        self.counters.store(EPISODES, status.episodes)
        self.counters.store(READY, 1)
        self.status = status
        if status.figures and time.monotonic() - self._counted[0] >= FIGURES_S:
            self._report_figures(status)
        return status.steps > self._taken

    def lose(self, why: str) -> None:
        super().lose(why)
        self.status = Status(steps=self.status.steps)

    def _report_figures(self, status: Status) -> None:
        now, (since, rows, nbytes) = time.monotonic(), self._counted
        figures = dict(status.figures)
        self._counted = now, figures["rows"], figures["bytes"]
        figures["rows_per_s"] = (figures.pop("rows") - rows) / (now - since)
        figures["bytes_per_s"] = (figures.pop("bytes") - nbytes) / (now - since)
        stores = self.context.stores
        figures["lag"] = max(stores[name].version - version for name, version in status.versions.items())
        figures["lease_age_s"] = self._leases.age(self.number)
        step, time_s = self.control.steps, now - self.context.memory.began
        for name, value in figures.items():
            self.reporter.report_each(time_s, step, "", f"{name}/{self.name}", [value])


class LearnerPlacement(Placement):
    """The place of a policy's learner; after its loss, a new learner continues from the last checkpoint."""

    loss = "another learner continues from the policy's last checkpoint"

    def __init__(
        self, number: int, policy: AssignedPolicy, uplink: Uplink, newest: Callable[[], int | None],
        context: PlacementContext,
    ) -> None:  # fmt: skip
        """`newest` returns the weights' highest version, or None while an earlier learner may still send weights."""
        (name,) = learner_names(context.spec.config, [policy.name])
        super().__init__(name, number, context.cluster.learning[policy.name], context)
        self._policy, self._uplink, self._newest = policy, uplink, newest
        self._saved = False  # whether the last weights are saved and have arrived here
        self._waits = False  # whether it was logged that this place waits for a machine
        self._move(None)

    @property
    def unfinished(self) -> bool:
        """Whether the learner's last weights are still expected."""
        gone = not self.epoch or not self.counters.load(READY)
        stopped = gone and self.control.stopping and not self.control.finishing
        return not (self._saved or self.has_failed or stopped)

    def may_begin(self) -> bool:
        return self._newest() is not None

    def work(self) -> Callable[..., LearnerNode]:
        """See Placement. First makes the new learner the only one that may write the policy's checkpoint."""
        spec, policy = self.context.spec, self._policy
        hold = replace(self.context.memory.holds[policy.name], epoch=self.epoch)
        hold.take()
        return partial(
            LearnerNode,
            spec=replace(spec, policies=(policy,)),
            share=self.control.about["policies"][policy.name]["share"],
            hold=hold,
            version=self._newest() or 0,
            elapsed=time.monotonic() - self.context.memory.began,
            namespace=self.context.cluster.namespace,
        )

    def orders(self) -> LearnerOrders:
        control, leases, seats = self.control, self._leases, self.context.spec.config.cluster.seats
        ended = [leases.epoch(seat) - (leases.state(seat) == "held") for seat in range(seats)]
        return LearnerOrders(control.steps, ended, control.stopping, control.finishing)

    def take(self, status: LearnerStatus) -> bool:
        if status.ready:  # before that, the learner has not read the checkpoint
            self.counters.store(UPDATES, status.updates)
            self.control.tallies[self._policy.name].store(UPDATES, status.updates)
        self.counters.store(READY, int(status.ready))
        self.count_restarts(status.restarts)
        self._move(status.address)
        if status.done and self._uplink.mirror.version >= status.version:
            self._saved = True
            self.counters.store(DONE, 1)
        return status.ready

    def lose(self, why: str) -> None:
        self._move(None)
        self._waits = False
        super().lose(why)

    def say_waiting(self) -> None:
        """Logs, once after each loss, that no machine has the resources for the learner."""
        if not self._waits:
            self._waits = True
            log.warning("%s; the run waits for a machine", self.context.cluster.lack(self.role))

    def _move(self, address: Address | None) -> None:
        """Connects all machines to the policy's learner at an address, for rows and weights; None disconnects them."""
        self.context.addresses[self._policy.name] = address
        self._uplink.move(address)
