"""The learner of a policy on a machine of its own: its transitions, weights, ingest and porter, and its program."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ...closing import Closing
from ...cluster import Leases
from ...interfaces import QueueSource
from ...processes import DONE, READY, RESTARTS, STEPS, UPDATES, Control, Telemetry
from ..config import AssignedPolicy, Config, Crew, learner_names
from ..loops import build_model, choose_device
from ..record import Hold, load_checkpoint
from ..workers import Blueprint, PolicyBlueprint, create_storage, create_weights
from .home import Home, RayAddress
from .node import ELSEWHERE, Program, Report


@dataclass(frozen=True)
class LearnerPlan:
    """The picklable description of a policy's learner on another machine."""

    env_fn: Callable[[], Any]
    config: Config
    policy: AssignedPolicy
    share: float  # of the run's steps
    hold: Hold  # on the policy's checkpoint
    version: int  # of its weights that anyone has; its own follow
    elapsed: float  # seconds since the run began
    namespace: str

    def start(self, orders: LearnerOrders) -> LearnerNode:
        return LearnerNode(self, orders)


@dataclass(frozen=True)
class LearnerOrders:
    """The controller's word for a learner's machine."""

    steps: int  # of the run
    ended: Sequence[int]  # by seat, the epoch to which leases have ended
    stopping: bool = False
    finishing: bool = False  # stopping, after the due updates


@dataclass(frozen=True)
class LearnerReport(Report):
    """The answer of a learner's machine; `done` once its last weights are published and saved."""

    updates: int = 0
    ready: bool = False  # whether it has begun to learn
    version: int = 0
    home: RayAddress | None = None


class LearnerNode(Closing):
    """A policy's learner and all that lies beside it. Its program dies with this process; segments go with `close`."""

    error: BaseException | None = None  # it has no relay, which could fail

    def __init__(self, plan: LearnerPlan, orders: LearnerOrders) -> None:
        """Raises SharedMemoryFull; Fenced: the policy has a later learner; ValueError: see `create_storage`."""
        policy, config = plan.policy, plan.config
        (self._name,) = learner_names(config, [policy.name])
        with ExitStack() as stack:
            about = {"policies": {policy.name: {"share": plan.share}}}
            self._control = stack.enter_context(Control.create([self._name, ELSEWHERE], [policy.name], **about))
            self._telemetry = stack.enter_context(Telemetry.create([self._name]))
            self._leases = stack.enter_context(Leases.create(config.cluster.seats + 1, config.cluster.lease_seconds))
            self._order(orders)
            placed = self._placed(stack, plan)
            self._home = stack.enter_context(Home([placed], config, self._leases, plan.namespace, follows=True))
            handles = self._control.handle, self._telemetry.handle
            began = time.monotonic() - plan.elapsed
            self._program = Program(Blueprint(plan.env_fn, config, (placed,), *handles, began, Crew(0, 0)))
            stack.callback(self._program.close)
            stack.callback(self._control.stop)
            self._stack = stack.pop_all()

    def _placed(self, stack: ExitStack, plan: LearnerPlan) -> PolicyBlueprint:
        """The policy's memory here, whose versions follow those that anyone has."""
        policy, config, saved = plan.policy, plan.config, plan.hold.checkpoint.with_suffix(".replay")
        plan.hold.begin()
        before = load_checkpoint(plan.hold.checkpoint).get("version", 0)
        model = build_model(policy, config)
        self._store = stack.enter_context(create_weights(policy, config, model, max(before, plan.version)))
        return PolicyBlueprint(
            **vars(policy),
            replay_was_saved=saved.exists(),  # before there is one of this run
            checkpoint=plan.hold.checkpoint,
            transitions=create_storage(stack, policy, config, saved),
            weights=self._store.handle,
            queued=isinstance(policy.source, QueueSource),
            hold=plan.hold,
        )

    def _order(self, orders: LearnerOrders) -> None:
        self._control.workers[ELSEWHERE].store(STEPS, orders.steps)
        for seat, epoch in enumerate(orders.ended):
            self._leases.follow(seat, epoch)
        if orders.finishing:
            self._control.finish()
        elif orders.stopping:
            self._control.stop()

    def beat(self, orders: LearnerOrders) -> LearnerReport:
        """Takes new orders; the report of what happened since the last one."""
        self._order(orders)
        (policy,), counters = self._control.tallies, self._control.workers[self._name]
        done = counters.load(DONE) != 0  # first: what follows is then the last
        return LearnerReport(
            restarts=self._control.notes[self._name].load(RESTARTS),
            done=done,
            metrics=self._telemetry.tail(),
            failed=None if done else self._program.failure(),
            updates=self._control.tallies[policy].load(UPDATES),
            ready=counters.load(READY) != 0,
            version=self._store.version,
            home=self._home.addresses[policy],
        )

    def close(self) -> None:
        """Ends the learner, then the ways to it, and removes the segments."""
        self._stack.close()


def try_learner(hold: Hold, device: str, replay_path: str | None) -> None:
    """Shows whether a learner can be on this machine; `hold` is any of this run. Raises ValueError: it cannot."""
    folder = hold.checkpoint.parent
    if not hold.is_seen() or not os.access(folder, os.W_OK):
        raise ValueError(
            f"run_dir: expected a directory that each learner's machine reaches, got {str(folder.parent)!r}"
        )
    choose_device(device)
    if replay_path is not None and not os.path.isdir(replay_path):
        raise ValueError(f"replay.path: expected a directory on each learner's machine, got {replay_path!r}")
