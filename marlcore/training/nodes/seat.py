"""The place of a machine's actors, as the driver sees it."""

from __future__ import annotations

import time

from ...processes import BEGUN, EPISODES, READY, SHARE, STEPS
from ..config import EVALUATOR, AssignedPolicy
from ..self_play import report_result
from .fleet import Hired
from .node import Orders, Plan, Report
from .post import Office, Post

FIGURES_S = 1.0  # between metrics of a node's traffic


class Seat(Post):
    """A place for the actors of one machine; if that is lost, others take its share of the steps.

    Attributes:
        report: the agent's last one.
        asked: the share of steps that the last call told.
    """

    loss = "others take its share of the steps"

    def __init__(self, name: str, number: int, office: Office) -> None:
        super().__init__(name, number, office.fleet.acting, office)
        self.report, self.asked = Report(), 0
        self._taken = 0  # steps of earlier agents
        self._counted = 0.0, 0.0, 0.0  # time, rows and bytes of the last figures
        self._games = None if office.results is None else office.results.reporter(name)

    @property
    def share(self) -> int:
        control = self.office.control
        return 0 if control.stopping else control.notes[self.name].load(SHARE)

    @property
    def done(self) -> bool:
        """Whether its agent has done all that it was asked for."""
        return self.report.done and self.asked == self.share

    def begin(self, agent: Hired) -> None:
        self._taken, self._counted = self.counters.load(STEPS), (time.monotonic(), 0.0, 0.0)
        self.report = Report(steps=self._taken, homes={**self.office.homes})
        super().begin(agent)

    def plan(self) -> Plan:
        blueprint = self.office.blueprint
        policies = tuple(map(AssignedPolicy.of, blueprint.policies))
        described = {name: store.description for name, store in self.office.stores.items()}
        elapsed = time.monotonic() - blueprint.began
        return Plan(
            blueprint.env_fn, blueprint.config, policies, self.number, self.epoch, self._taken, elapsed, described,
            self.office.opponents,
        )  # fmt: skip

    def orders(self) -> Orders:
        control, self.asked = self.office.control, self.share
        evaluated = control.workers[EVALUATOR].load(BEGUN) if EVALUATOR in control.workers else 0
        return Orders(self.asked, control.steps - self.counters.load(STEPS), {**self.office.homes}, evaluated)

    def _take(self, agent: Hired, report: Report) -> None:
        for opponent, result in report.results:  # first: these games count however the agent ended
            assert self._games is not None
            report_result(self._games, opponent, result)
        super()._take(agent, report)

    def take(self, report: Report) -> bool:
        self.counters.store(STEPS, report.steps)
        self.counters.store(EPISODES, report.episodes)
        self.counters.store(READY, 1)
        self.report = report
        if report.figures and time.monotonic() - self._counted[0] >= FIGURES_S:
            self._report_figures(report)
        return report.steps > self._taken

    def lose(self, why: str) -> None:
        super().lose(why)
        self.report = Report(steps=self.report.steps)

    def _report_figures(self, report: Report) -> None:
        now, (before, rows, nbytes) = time.monotonic(), self._counted
        figures = dict(report.figures)
        self._counted = now, figures["rows"], figures["bytes"]
        figures["rows_per_s"] = (figures.pop("rows") - rows) / (now - before)
        figures["bytes_per_s"] = (figures.pop("bytes") - nbytes) / (now - before)
        stores = self.office.stores
        figures["lag"] = max(stores[name].version - version for name, version in report.versions.items())
        figures["lease_age_s"] = self.office.leases.age(self.number)
        step, time_s = self.office.control.steps, now - self.office.blueprint.began
        for name, value in figures.items():
            self.reporter.report_each(time_s, step, "", f"{name}/{self.name}", [value])

    def close(self) -> None:
        super().close()
        if self._games is not None:
            self._games.close()
