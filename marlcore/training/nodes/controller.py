"""The controller, in the driver: it seats agents, hears them, deals out the steps, and replaces lost agents."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

import cloudpickle

from ...closing import Closing
from ...errors import Fenced, WorkerFailed
from ...processes import EPISODES, READY, RESTARTS, SHARE, STEPS, Control, Reporter, Telemetry
from ...weights import ParameterStore
from ..config import AssignedPolicy, node_names
from ..workers import Blueprint, deal_steps
from .fleet import START_S, AgentLost, Call, Fleet, Hired, Machine
from .home import Home
from .node import SUPERVISOR, Orders, Plan, Report

BEATS_A_LEASE = 8  # so that some may be lost
FIGURES_S = 1.0  # between metrics of the nodes' traffic
LOOK_S = 1.0  # between looks for machines
BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0  # before a seat's next agent, doubled after each that had done no step

log = logging.getLogger(__name__)


@dataclass
class Seat:
    """A place for an agent, and the one that has it, if any."""

    name: str
    number: int
    agent: Hired | None = None
    epoch: int = 0  # of the agent, once it works
    call: Call | None = None  # of the agent, whose answer is awaited
    called: float = 0.0
    asked: int = 0  # the share of steps that the last call told
    report: Report = field(default_factory=Report)  # the agent's last one
    taken: int = 0  # steps of earlier agents
    failures: int = 0  # agents lost in a row, none of which had done a step
    due: float = 0.0  # the time of the next agent
    counted: tuple[float, float, float] = (0.0, 0.0, 0.0)  # time, rows and bytes of the last figures


class Controller(Closing):
    """The actors of a run on other machines; see `Elsewhere`. Everything there ends with `close`."""

    def __init__(self, fleet: Fleet, blueprint: Blueprint, control: Control, telemetry: Telemetry) -> None:
        self._fleet, self._blueprint, self._control = fleet, blueprint, control
        self._config = config = blueprint.config
        self._beat_s = config.cluster.lease_seconds / BEATS_A_LEASE
        self._looked = self._ticked = self._patient_until = 0.0
        self._dealt_to = node_names(config)  # by the session
        with ExitStack() as stack:
            self._home = stack.enter_context(Home(blueprint, fleet))
            stack.callback(fleet.end)
            names = node_names(config)
            self._reporters = {name: stack.enter_context(closing(telemetry.reporter(name))) for name in names}
            attached = ((policy.name, ParameterStore.attach(policy.weights)) for policy in blueprint.policies)
            self._stores = {name: stack.enter_context(store) for name, store in attached}
            self.seats = [Seat(name, number) for number, name in enumerate(names)]
            for seat, agent in zip(self.seats, fleet.hired, strict=False):
                self._begin(seat, agent)
            self._deal()
            self._stack = stack.pop_all()

    @property
    def done(self) -> bool:
        working = [seat for seat in self.seats if seat.agent is not None]
        ended = all(seat.report.done and seat.asked == self._share(seat) for seat in working)
        return ended and self._control.steps >= self._config.total_steps

    def tick(self) -> None:
        now, lease = time.monotonic(), self._config.cluster.lease_seconds
        if now - self._ticked > lease / 2:  # this process was held up, and heard nobody meanwhile
            self._patient_until = now + lease
        self._ticked = now
        for seat in self.seats:
            if seat.agent is None:
                continue
            try:
                self._hear(seat, seat.agent)
            except (AgentLost, Fenced, ValueError) as error:  # ValueError: its machine cannot do the work
                self._lose(seat, str(error))
        if now >= self._patient_until:
            for number in self._home.leases.expire():
                self._lose(self.seats[number], f"it was silent for {lease:g} s")
        self._fill()
        self._deal()

    def _hear(self, seat: Seat, agent: Hired) -> None:
        """Takes an agent's answer, if it came; makes the next call, if it is due. Raises AgentLost, WorkerFailed."""
        now = time.monotonic()
        if seat.call is not None:
            if not seat.call.wait():
                if not seat.epoch and now - seat.called > START_S:
                    raise AgentLost(f"it did not start within {START_S:g} s")
                return
            answer, call = None, seat.call
            seat.call = None
            if seat.epoch:
                answer = call.answer()
                if not self._home.leases.renew(seat.number, seat.epoch):
                    raise AgentLost("its lease had ended")
            else:
                self._fleet.check(agent, call)
                self._begin(seat, agent)
            if answer is not None:
                self._take(seat, agent, answer)
        elif now - seat.called >= self._beat_s:
            seat.asked, seat.called = self._share(seat), now
            seat.call = agent.call("beat", self._orders(seat))

    def _begin(self, seat: Seat, agent: Hired) -> None:
        """Seats an agent that was checked, and has it begin."""
        blueprint = self._blueprint
        policies = tuple(
            AssignedPolicy(policy.name, policy.agents, policy.spaces, policy.algorithm, policy.source, policy.index)
            for policy in blueprint.policies
        )
        seat.agent, seat.epoch = agent, self._home.leases.grant(seat.number)
        seat.taken = self._control.workers[seat.name].load(STEPS)
        elapsed = time.monotonic() - blueprint.began
        plan = Plan(blueprint.env_fn, self._config, policies, seat.number, seat.epoch, seat.taken, elapsed)
        seat.call = agent.call("begin", cloudpickle.dumps(plan), self._orders(seat), self._home.links)
        seat.report, seat.counted = Report(steps=seat.taken), (time.monotonic(), 0.0, 0.0)

    def _orders(self, seat: Seat) -> Orders:
        return Orders(self._share(seat), self._control.steps - self._control.workers[seat.name].load(STEPS))

    def _share(self, seat: Seat) -> int:
        return 0 if self._control.stopping else self._control.notes[seat.name].load(SHARE)

    def _take(self, seat: Seat, agent: Hired, report: Report) -> None:
        """Takes a report into the run's counters and metrics. Raises WorkerFailed, AgentLost: it tells of a failure."""
        if (failed := report.failed) is not None:
            if failed.worker == SUPERVISOR:  # it was killed
                raise AgentLost(failed.traceback)
            where = f"{failed.worker} on {seat.name}, {agent.machine.host}"
            raise WorkerFailed(where, failed.reason, failed.traceback)
        counters = self._control.workers[seat.name]
        counters.store(STEPS, report.steps)
        counters.store(EPISODES, report.episodes)
        counters.store(READY, 1)
        if report.steps > seat.taken:
            seat.failures = 0
        for metric in report.metrics:
            self._reporters[seat.name].report(metric)
        seat.report = report
        if report.figures and time.monotonic() - seat.counted[0] >= FIGURES_S:
            self._report_figures(seat, report, self._reporters[seat.name])

    def _report_figures(self, seat: Seat, report: Report, reporter: Reporter) -> None:
        now, (before, rows, nbytes) = time.monotonic(), seat.counted
        figures = dict(report.figures)
        seat.counted = now, figures["rows"], figures["bytes"]
        figures["rows_per_s"] = (figures.pop("rows") - rows) / (now - before)
        figures["bytes_per_s"] = (figures.pop("bytes") - nbytes) / (now - before)
        figures["lag"] = max(self._stores[name].version - version for name, version in report.versions.items())
        figures["lease_age_s"] = self._home.leases.age(seat.number)
        step, time_s = self._control.steps, now - self._blueprint.began
        for name, value in figures.items():
            reporter.report_each(time_s, step, "", f"{name}/{seat.name}", [value])

    def _lose(self, seat: Seat, why: str) -> None:
        """Gives an agent up: its seat is fenced, and its share of the steps is dealt out again."""
        agent, seat.agent, seat.call = seat.agent, None, None
        if agent is None:
            return
        self._home.leases.fence(seat.number)
        log.warning("%s on %s is lost (%s); others take its share of the steps", seat.name, agent.machine.host, why)
        seat.due = time.monotonic() + min(BACKOFF_S * 2**seat.failures, LONGEST_BACKOFF_S)
        seat.failures, seat.epoch, seat.report = seat.failures + 1, 0, Report(steps=seat.report.steps)
        self._control.workers[seat.name].store(READY, 0)
        notes = self._control.notes[seat.name]
        notes.store(RESTARTS, notes.load(RESTARTS) + 1)
        self._fleet.dismiss(agent)

    def _fill(self) -> None:
        """Hires an agent for each empty seat for which a machine is free, such as one that has joined."""
        now = time.monotonic()
        empty = [seat for seat in self.seats if seat.agent is None and now >= seat.due]
        if not empty or now - self._looked < LOOK_S or self._control.stopping:
            return
        self._looked = now
        for seat, machine in zip(empty, list(self._fleet.free()), strict=False):
            self._hire(seat, machine)

    def _hire(self, seat: Seat, machine: Machine) -> None:
        seat.agent, seat.epoch = self._fleet.hire(machine), 0
        seat.call, seat.called = self._fleet.checked(seat.agent), time.monotonic()

    def _deal(self) -> None:
        """Deals the steps out anew where other nodes work than before."""
        working = [seat.name for seat in self.seats if seat.agent is not None]
        if working != self._dealt_to:
            self._dealt_to = working
            deal_steps(self._control, self._config, working)

    def close(self) -> None:
        self._stack.close()
