"""The place of a policy's learner on another machine, as the driver sees it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from ...processes import DONE, READY, UPDATES
from ..config import AssignedPolicy, learner_names
from ..workers import PolicyBlueprint
from .home import RayAddress
from .learner_node import LearnerOrders, LearnerPlan, LearnerReport
from .post import Office, Post
from .traffic import Traffic

log = logging.getLogger(__name__)


class LearnerPost(Post):
    """A policy's learner on another machine; if that is lost, another one continues from the last checkpoint."""

    loss = "another learner follows, from the policy's last checkpoint"

    def __init__(
        self, number: int, policy: PolicyBlueprint, traffic: Traffic, newest: Callable[[], int | None], office: Office
    ) -> None:
        """`newest` gives the highest version of its weights anywhere; None while an earlier learner's may come."""
        (name,) = learner_names(office.blueprint.config, [policy.name])
        super().__init__(name, number, office.fleet.learning[policy.name], office)
        self._policy, self._traffic, self._newest = policy, traffic, newest
        self._seats = office.blueprint.config.cluster.seats
        self._saved = False  # the last weights, which have also arrived here
        self._waits = False  # for a machine, which was said
        self._move(None)

    @property
    def unfinished(self) -> bool:
        """Whether its last weights are still to come."""
        control = self.office.control
        gone = not self.epoch or not self.counters.load(READY)
        return not (self._saved or self.has_failed or (gone and control.stopping and not control.finishing))

    def may_begin(self) -> bool:
        return self._newest() is not None

    def plan(self) -> LearnerPlan:
        """The plan, after the hold on the checkpoint has passed to it."""
        blueprint, policy = self.office.blueprint, self._policy
        assert policy.hold is not None
        hold = replace(policy.hold, epoch=self.epoch)
        hold.take()
        share = self.office.control.about["policies"][policy.name]["share"]
        elapsed, version = time.monotonic() - blueprint.began, self._newest() or 0
        assigned, namespace = AssignedPolicy.of(policy), self.office.fleet.namespace
        return LearnerPlan(blueprint.env_fn, blueprint.config, assigned, share, hold, version, elapsed, namespace)

    def orders(self) -> LearnerOrders:
        control, leases = self.office.control, self.office.leases
        ended = [leases.epoch(seat) - (leases.state(seat) == "held") for seat in range(self._seats)]
        return LearnerOrders(control.steps, ended, control.stopping, control.finishing)

    def take(self, report: LearnerReport) -> bool:
        if report.ready:  # before, it has not read the checkpoint
            self.counters.store(UPDATES, report.updates)
            self.office.control.tallies[self._policy.name].store(UPDATES, report.updates)
        self.counters.store(READY, int(report.ready))
        self.count_restarts(report.restarts)
        self._move(report.home)
        if report.done and self._traffic.mirror.version >= report.version:
            self._saved = True
            self.counters.store(DONE, 1)
        return report.ready

    def lose(self, why: str) -> None:
        self._move(None)
        self._waits = False
        super().lose(why)

    def say_waiting(self) -> None:
        """Says once after a loss that no machine has the resources."""
        if not self._waits:
            self._waits = True
            log.warning("%s; the run waits for one", self.office.fleet.lack(self.job))

    def _move(self, home: RayAddress | None) -> None:
        """Has the policy's rows and weights pass to and from this home alone."""
        self.office.homes[self._policy.name] = home
        self._traffic.move(home)
