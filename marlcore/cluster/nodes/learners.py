"""A policy's learner on another machine: its memory and program there, and its messages with the controller."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from ...cluster import Leases
from ...config import AssignedPolicy, Config, Crew
from ...devices import choose_device
from ...loops import build_model
from ...processes import DONE, READY, RESTARTS, STEPS, UPDATES, Control, Telemetry
from ...record import Hold, load_checkpoint
from ...run import Memory, RunSpec, create_transitions, create_weights
from .actors import OTHERS, Status
from .program import Program
from .uplink import Address, serve


@dataclass(frozen=True)
class LearnerOrders:
    """The controller's message to a learner's machine."""

    steps: int  # of the run so far
    ended: Sequence[int]  # by seat: the last epoch whose lease has ended
    stopping: bool = False
    finishing: bool = False  # whether to stop after the updates that are due


@dataclass(frozen=True)
class LearnerStatus(Status):
    """The answer of a learner's machine; `done` means that the last weights are published and saved."""

    updates: int = 0
    ready: bool = False  # whether the learner has begun to learn
    version: int = 0
    address: Address | None = None


class LearnerNode:
    """A run's part on the machine of a policy's learner. The learner's supervising program dies with this process."""

    error: BaseException | None = None  # always None: this part has no relay that could fail

    def __init__(
        self, stack: ExitStack, orders: LearnerOrders, *, spec: RunSpec, share: float, hold: Hold, version: int,
        elapsed: float, namespace: str,
    ) -> None:  # fmt: skip
        """Makes the machine's part of the run.

        `spec` has only this policy; `share` is its share of the run's steps; `hold` is the right to write the
        checkpoint; `version` is the highest version of the weights on any machine; `elapsed` is the run's seconds so
        far. Raises SharedMemoryFull; Fenced if the policy has a later learner; ValueError as `create_transitions` does.
        """
        (policy,), (self._name,), config = spec.policies, spec.learners, spec.config
        about = {"policies": {policy.name: {"share": share}}}
        self._control = stack.enter_context(Control.create([self._name, OTHERS], [policy.name], **about))
        self._telemetry = stack.enter_context(Telemetry.create([self._name]))
        self._leases = stack.enter_context(Leases.create(config.cluster.seats + 1, config.cluster.lease_seconds))
        self._order(orders)
        memory = self._memory(stack, policy, config, hold, version, time.monotonic() - elapsed)
        (self._address,) = serve(stack, [policy], memory, config, self._leases, namespace, follows=True).values()
        self._program = stack.enter_context(Program(spec, memory))
        stack.callback(self._control.stop)

    def _memory(
        self, stack: ExitStack, policy: AssignedPolicy, config: Config, hold: Hold, version: int, began: float
    ) -> Memory:
        """Makes the policy's shared memory, in which versions of weights exceed `version` and all saved versions."""
        saved = hold.checkpoint.with_suffix(".replay")
        hold.begin()
        version = max(version, load_checkpoint(hold.checkpoint).get("version", 0))
        transitions, newest = create_transitions(stack, policy, config, saved)
        model, version = build_model(policy, config), max(version, newest)
        self._store = stack.enter_context(create_weights(policy, config, model, version))
        return Memory(
            crew=Crew(0, 0),
            run_dir=hold.checkpoint.parents[1],
            began=began,
            control=self._control.handle,
            telemetry=self._telemetry.handle,
            reloaded=[policy.name] if saved.exists() else [],
            transitions={policy.name: transitions},
            weights={policy.name: self._store.handle},
            holds={policy.name: hold},
        )

    def _order(self, orders: LearnerOrders) -> None:
        self._control.workers[OTHERS].store(STEPS, orders.steps)
        for seat, epoch in enumerate(orders.ended):
            self._leases.follow(seat, epoch)
        if orders.finishing:
            self._control.finish()
        elif orders.stopping:
            self._control.stop()

    def beat(self, orders: LearnerOrders) -> LearnerStatus:
        """Takes new orders; returns the status, with metrics since the last call."""
        self._order(orders)
        (policy,), counters = self._control.tallies, self._control.workers[self._name]
        done = counters.load(DONE) != 0  # read first, since the values below are final once it is set
        return LearnerStatus(
            restarts=self._control.notes[self._name].load(RESTARTS),
            done=done,
            metrics=self._telemetry.tail(),
            failed=None if done else self._program.failure(),
            updates=self._control.tallies[policy].load(UPDATES),
            ready=counters.load(READY) != 0,
            version=self._store.version,
            address=self._address,
        )


def try_learner(hold: Hold, device: str, replay_path: str | None) -> None:
    """Raises ValueError if a learner cannot run on this machine. `hold` may belong to any policy of the run."""
    folder = hold.checkpoint.parent
    if not hold.is_seen() or not os.access(folder, os.W_OK):
        raise ValueError(f"run_dir: expected a directory that learners' machines reach, got {str(folder.parent)!r}")
    choose_device(device)
    if replay_path is not None and not os.path.isdir(replay_path):
        raise ValueError(f"replay.path: expected a directory on each learner's machine, got {replay_path!r}")
