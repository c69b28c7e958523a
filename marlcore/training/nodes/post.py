"""A place for an agent: the calls of the one that has it, and what follows if it is lost."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import cloudpickle

from ...closing import Closing
from ...cluster import Leases, WeightsLink
from ...errors import WorkerFailed
from ...processes import READY, RESTARTS, Control, Telemetry
from ...weights import ParameterStore
from ..workers import Blueprint
from .fleet import START_S, AgentLost, Call, Fleet, Hired, Job, Machine
from .home import RayAddress
from .node import SUPERVISOR

BEATS_A_LEASE = 8  # so that some may be lost
BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0  # before the next agent, doubled after each that had done nothing

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Office:
    """What all posts of a run share."""

    fleet: Fleet
    leases: Leases
    blueprint: Blueprint
    control: Control
    telemetry: Telemetry
    stores: Mapping[str, ParameterStore]  # of weights on this machine, by policy
    homes: dict[str, RayAddress | None]  # of learners, by policy; None: on no machine
    opponents: WeightsLink | None  # the way to the pool of opponents, in self-play
    results: Telemetry | None  # of games, in self-play


class Post(ABC, Closing):
    """A place for an agent; its name is that of a worker of the run, whose counters it keeps.

    Attributes:
        agent: the one that has it, if any.
        epoch: of the agent, once it works; otherwise 0.
        has_failed: whether a worker there failed for good.
    """

    loss = ""  # what follows if an agent is lost

    def __init__(self, name: str, number: int, job: Job, office: Office) -> None:
        """`number` is that of its lease."""
        self.name, self.number, self.job, self.office = name, number, job, office
        self.agent: Hired | None = None
        self.epoch = 0
        self.has_failed = False
        self.counters, self.reporter = office.control.workers[name], office.telemetry.reporter(name)
        self._fleet, self._leases = office.fleet, office.leases
        self._call: Call | None = None  # of the agent, whose answer is awaited
        self._called = 0.0
        self._failures = 0  # agents lost in a row, none of which had done anything
        self._due = 0.0  # the time of the next agent
        self._lost = 0  # agents

    @property
    def wants(self) -> bool:
        """Whether it is time for an agent."""
        return self.agent is None and time.monotonic() >= self._due

    def hire(self, machine: Machine) -> None:
        """Starts an agent on a machine, which has it checked before it begins."""
        self.agent, self.epoch = self._fleet.hire(machine, self.job), 0
        self._call, self._called = self._fleet.checked(self.agent), time.monotonic()

    def begin(self, agent: Hired) -> None:
        """Gives the place to an agent that was checked, and has it begin."""
        self.agent, self.epoch = agent, self._leases.grant(self.number)
        self._called = time.monotonic()
        self._call = agent.call("begin", cloudpickle.dumps(self.plan()), self.orders())

    def hear(self) -> None:
        """Takes the agent's answer, if it came; makes the next call, if it is due.

        Raises: AgentLost, Fenced, ValueError: the agent is lost, or its machine cannot do the work. WorkerFailed.
        """
        now, agent, call = time.monotonic(), self.agent, self._call
        if agent is None:
            return
        if call is not None and call.wait():
            self._call = None
            if not self.epoch:
                self._fleet.check(agent, call)
            else:
                answer = call.answer()
                if not self._leases.renew(self.number, self.epoch):
                    raise AgentLost("its lease had ended")
                if answer is not None:
                    self._take(agent, answer)
        if not self.epoch:
            if self._call is None and self.may_begin():
                self.begin(agent)
            elif now - self._called > START_S:
                raise AgentLost(f"it did not start within {START_S:g} s")
        elif self._call is None and now - self._called >= self._leases.lease_seconds / BEATS_A_LEASE:
            self._called = now
            self._call = agent.call("beat", self.orders())

    def _take(self, agent: Hired, report: Any) -> None:
        if (failed := report.failed) is not None:
            if failed.worker == SUPERVISOR:  # it was killed
                raise AgentLost(failed.traceback)
            self.has_failed = True
            where = f"{failed.worker} on {self.name}, {agent.machine.host}"
            raise WorkerFailed(where, failed.reason, failed.traceback)
        for metric in report.metrics:
            self.reporter.report(metric)
        if self.take(report):
            self._failures = 0

    def lose(self, why: str) -> None:
        """Gives the agent up: its epoch is fenced."""
        agent, self.agent, self._call = self.agent, None, None
        if agent is None:
            return
        self._leases.fence(self.number)
        log.warning("%s on %s is lost (%s); %s", self.name, agent.machine.host, why, self.loss)
        self._due = time.monotonic() + min(BACKOFF_S * 2**self._failures, LONGEST_BACKOFF_S)
        self._failures, self._lost, self.epoch = self._failures + 1, self._lost + 1, 0
        self.counters.store(READY, 0)
        self.count_restarts(0)
        self._fleet.dismiss(agent)

    def count_restarts(self, here: int) -> None:
        """Tells the run the agents that were lost, and restarts under the present one that count too."""
        self.office.control.notes[self.name].store(RESTARTS, self._lost + here)

    def close(self) -> None:
        self.reporter.close()

    def may_begin(self) -> bool:
        """Whether an agent that was checked may begin."""
        return True

    @abstractmethod
    def plan(self) -> Any:
        """What an agent begins with."""

    @abstractmethod
    def orders(self) -> Any:
        """What each call of an agent tells it."""

    @abstractmethod
    def take(self, report: Any) -> bool:
        """Takes a report into the run's counters and metrics; whether it shows that the agent has done something."""
