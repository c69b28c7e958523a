"""The controller, in the driver: it gives agents their posts, hears them, deals out the steps, replaces the lost."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial

from ...closing import Closing
from ...cluster import Leases
from ...errors import Fenced
from ...processes import Control, Telemetry, failure_of
from ...weights import ParameterStore
from ..config import node_names
from ..workers import Blueprint, deal_steps
from .fleet import AgentLost, Fleet
from .home import Home
from .learner_post import LearnerPost
from .post import Office, Post
from .seat import Seat
from .traffic import Traffic

LOOK_S = 1.0  # between looks for machines


class Controller(Closing):
    """The actors and learners of a run on other machines; see `Elsewhere`. Everything there ends with `close`."""

    def __init__(
        self, fleet: Fleet, blueprint: Blueprint, control: Control, telemetry: Telemetry, traffic: Mapping[str, Traffic]
    ) -> None:
        """`traffic`: that of this machine's actors, by policy whose learner is on another one."""
        self._fleet, self._control, self._traffic = fleet, control, traffic
        self._config = config = blueprint.config
        self._looked = self._ticked = self._patient_until = 0.0
        names = self._dealt_to = node_names(config)  # by the session
        with ExitStack() as stack:
            cluster, here = config.cluster, [policy for policy in blueprint.policies if policy.name not in traffic]
            self._leases = stack.enter_context(Leases.create(cluster.seats + len(traffic), cluster.lease_seconds))
            games = next(iter(blueprint.self_play), None)
            pool = None if games is None else games.pool
            home = stack.enter_context(Home(here, config, self._leases, fleet.namespace, pool=pool))
            stack.callback(fleet.end)
            attached = {policy.name: ParameterStore.attach(policy.weights) for policy in blueprint.policies}
            stores = {name: stack.enter_context(store) for name, store in attached.items()}
            results = None if games is None else stack.enter_context(Telemetry.attach(games.results))
            office = Office(
                fleet, self._leases, blueprint, control, telemetry, stores, {**home.addresses}, home.opponents, results
            )
            self.seats = [stack.enter_context(Seat(name, number, office)) for number, name in enumerate(names)]
            apart = [policy for policy in blueprint.policies if policy.name in traffic]
            self.learners = [
                stack.enter_context(
                    LearnerPost(number, policy, traffic[policy.name], partial(self._newest, policy.name), office)
                )
                for number, policy in enumerate(apart, cluster.seats)
            ]
            self._posts: list[Post] = [*self.seats, *self.learners]
            for agent in fleet.hired:  # which were checked
                next(post for post in self._posts if post.job is agent.job and post.agent is None).begin(agent)
            self._deal()
            self._stack = stack.pop_all()

    @property
    def done(self) -> bool:
        ended = all(seat.done for seat in self.seats if seat.agent is not None)
        arrived = all(traffic.drained() for traffic in self._traffic.values())
        return ended and arrived and self._control.steps >= self._config.total_steps

    @property
    def unfinished(self) -> list[str]:
        return [post.name for post in self.learners if post.unfinished]

    def tick(self) -> None:
        now, lease = time.monotonic(), self._config.cluster.lease_seconds
        if now - self._ticked > lease / 2:  # this process was held up, and heard nobody meanwhile
            self._patient_until = now + lease
        self._ticked = now
        for post in self._posts:
            try:
                post.hear()
            except (AgentLost, Fenced, ValueError) as error:  # ValueError: its machine cannot do the work
                post.lose(str(error))
        if now >= self._patient_until:
            for number in self._leases.expire():
                self._posts[number].lose(f"it was silent for {lease:g} s")
        for name, traffic in self._traffic.items():
            try:
                traffic.check()
            except Exception as error:  # of a relay or a mirror, which ended
                raise failure_of(f"rows and weights of {name}", error) from error
        self._fill()
        self._deal()

    def _newest(self, policy: str) -> int | None:
        """The highest version of a policy's weights on any machine; None while those of an earlier learner may come."""
        reports = [seat.report for seat in self.seats if seat.epoch]
        if any(report.homes[policy] is not None for report in reports):
            return None
        return max(self._traffic[policy].mirror.version, *(report.versions.get(policy, 0) for report in reports), 0)

    def _fill(self) -> None:
        """Hires an agent for each empty post for which a machine is free, such as one that has joined."""
        control = self._control
        posts: list[Post] = [*self.learners]
        if not control.stopping:
            posts += self.seats
        elif not control.finishing:
            return
        empty, now = [post for post in posts if post.wants], time.monotonic()
        if not empty or now - self._looked < LOOK_S:
            return
        self._looked = now
        for post in empty:
            if (machine := next(iter(self._fleet.free(post.job)), None)) is not None:
                post.hire(machine)
            elif isinstance(post, LearnerPost):
                post.say_waiting()

    def _deal(self) -> None:
        """Deals the steps out anew where other nodes work than before."""
        working = [seat.name for seat in self.seats if seat.agent is not None]
        if working != self._dealt_to:
            self._dealt_to = working
            deal_steps(self._control, self._config, working)

    def close(self) -> None:
        self._stack.close()
