"""A node's part of a run: shared memory, a program with the actors, and the traffic of rows and weights; no Ray."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import cloudpickle

from ...closing import Closing
from ...cluster import Mirror, Relay
from ...errors import WorkerFailed, suppress_failed_calls
from ...interfaces import QueueSource
from ...processes import EPISODES, RESTARTS, SHARE, STEPS, Control, Metric, Telemetry, start_child
from ...queue import TrajectoryQueue
from ...replay import ReplayBuffer
from ..config import AssignedPolicy, Config, Crew, crews
from ..workers import Blueprint, PolicyBlueprint, dealt, spec_of

SUPERVISOR = "supervisor"  # the worker that failed where a node's program died
ELSEWHERE = "elsewhere"  # counts the steps of all other actors of the run
KILL_S = 10.0


@dataclass(frozen=True)
class Plan:
    """The picklable description of a node's part of a run."""

    env_fn: Callable[[], Any]
    config: Config
    policies: tuple[AssignedPolicy, ...]
    seat: int
    epoch: int
    taken: int  # steps of the seat's earlier holders
    elapsed: float  # seconds since the run began

    @property
    def crew(self) -> Crew:
        return crews(self.config)[1 + self.seat]


@dataclass(frozen=True)
class Orders:
    """The controller's word for a node."""

    share: int  # the seat's steps, earlier holders' included, at which its actors are done
    elsewhere: int  # steps that the run's other actors have taken


@dataclass(frozen=True)
class Report:
    """A node's answer."""

    steps: int = 0  # of the seat, earlier holders' included
    episodes: int = 0  # ended since the node's start
    restarts: int = 0  # of its actors
    done: bool = False  # whether the actors have taken their share, and all of its rows have arrived
    metrics: Sequence[Metric] = ()
    figures: dict[str, float] = field(default_factory=dict)  # of its traffic, by name
    versions: dict[str, int] = field(default_factory=dict)  # of the weights that it has, by policy
    failed: WorkerFailed | None = None  # what ended its work


class Links(Protocol):
    """The ways to a policy's home, by the policy's name."""

    def rows(self, policy: str) -> Any: ...
    def weights(self, policy: str) -> Any: ...


class Node(Closing):
    """A node's part of a run. The program with its actors dies with this process, and its segments go with `close`."""

    def __init__(self, plan: Plan, orders: Orders, links: Links) -> None:
        """Raises SharedMemoryFull, ConnectionError: no room, or no weights can be had."""
        self._plan, self._crew, config = plan, plan.crew, plan.config
        self._episodes = dict.fromkeys(self._crew.names, (0, 0))  # ended before, and the last count
        with ExitStack() as stack:
            self._control = stack.enter_context(Control.create([*self._crew.names, ELSEWHERE]))
            self._telemetry = stack.enter_context(Telemetry.create(self._crew.names))
            each = [1] * self._crew.count
            for name, steps in zip(self._crew.names, dealt(plan.taken, [0] * len(each), each), strict=True):
                self._control.workers[name].store(STEPS, steps)
            self._mirrors: dict[str, Mirror] = {}
            self._relays: list[Relay] = []
            placed = tuple(self._placed(stack, policy, links) for policy in plan.policies)
            began = time.monotonic() - plan.elapsed
            handles = self._control.handle, self._telemetry.handle
            blueprint = Blueprint(plan.env_fn, config, placed, *handles, began, self._crew)
            self._order(orders)
            self._program = Program(blueprint)
            stack.callback(self._program.close)
            stack.callback(self._control.stop)
            self._stack = stack.pop_all()

    def _placed(self, stack: ExitStack, policy: AssignedPolicy, links: Links) -> PolicyBlueprint:
        """A policy's transitions and weights on this node, with their traffic."""
        config, cluster = self._plan.config, self._plan.config.cluster
        mirror = Mirror(links.weights(policy.name), sync_seconds=cluster.sync_seconds, name=f"weights.{policy.index}")
        self._mirrors[policy.name] = stack.enter_context(mirror)
        source = source_of_rows(policy, config, self._crew)
        stack.callback(source.close)
        relay = Relay(
            source, links.rows(policy.name), seat=self._plan.seat, epoch=self._plan.epoch,
            flush_seconds=cluster.flush_seconds, compress=cluster.compress,
        )  # fmt: skip
        self._relays.append(stack.enter_context(relay.start()))
        return PolicyBlueprint(
            **vars(policy),
            checkpoint=Path(),
            saved_replay=None,
            transitions=source.handle,
            weights=mirror.store.handle,
            queued=isinstance(source, TrajectoryQueue),
        )

    def _order(self, orders: Orders) -> None:
        workers, names = self._control.workers, self._crew.names
        workers[ELSEWHERE].store(STEPS, orders.elsewhere)
        if orders.share != sum(self._control.notes[name].load(SHARE) for name in names):
            shares = dealt(orders.share, [workers[name].load(STEPS) for name in names], [1] * len(names))
            for name, share in zip(names, shares, strict=True):
                self._control.notes[name].store(SHARE, share)

    def beat(self, orders: Orders) -> Report:
        """Takes new orders; the report of what happened since the last one. Raises Fenced: the seat is lost."""
        self._order(orders)
        if self.error is not None:
            raise self.error
        for mirror in self._mirrors.values():
            mirror.check()
        workers, notes, names = self._control.workers, self._control.notes, self._crew.names
        rest = sum(notes[name].load(SHARE) - min(workers[name].load(STEPS), notes[name].load(SHARE)) for name in names)
        return Report(
            steps=sum(workers[name].load(STEPS) for name in names),
            episodes=sum(map(self._ended, names)),
            restarts=sum(notes[name].load(RESTARTS) for name in names),
            done=not rest and all(relay.drain(0.0) for relay in self._relays),
            metrics=self._telemetry.tail(),
            figures=self._figures(),
            versions={policy: mirror.version for policy, mirror in self._mirrors.items()},
            failed=self._program.failure(),
        )

    @property
    def error(self) -> BaseException | None:
        """What ended a relay, such as Fenced; None while all work."""
        return next((relay.error for relay in self._relays if relay.error is not None), None)

    def _ended(self, actor: str) -> int:
        """Episodes of an actor; the process that follows a dead one counts from 0 again."""
        count, (before, last) = self._control.workers[actor].load(EPISODES), self._episodes[actor]
        before += last if count < last else 0
        self._episodes[actor] = before, count
        return before + count

    def _figures(self) -> dict[str, float]:
        stats = [relay.stats for relay in self._relays]
        sums = ("rows", "bytes", "raw_bytes", "messages", "in_flight", "gaps", "rewinds")
        figures = {name: float(sum(getattr(each, name) for each in stats)) for name in sums}
        return figures | {f"delay_ms_p{p}": 1000 * max(each.delay(p) for each in stats) for p in (50, 99)}

    def close(self) -> None:
        """Ends the actors, then the traffic, and removes the segments."""
        self._stack.close()


def source_of_rows(policy: AssignedPolicy, config: Config, crew: Crew) -> ReplayBuffer | TrajectoryQueue:
    """A policy's transitions on a node. Where the learner holds actors back, a queue whose writers wait for the relay.

    So many rows may be on their way as the run on one machine would have its actors ahead.
    """
    queued, copies = isinstance(policy.source, QueueSource), config.actor.envs
    parts = 1 if queued else config.replay.parts
    lanes = crew.lanes(parts, len(policy.agents), copies).size
    spec, rows, name = spec_of(policy, config), config.cluster.lane_rows, f"rows.{policy.index}"
    if isinstance(policy.source, QueueSource):
        source = policy.source
        ahead = source.ahead * source.batch_size * (source.length or 1) * crew.count // config.actors
    elif (limiter := config.limiter(policy.name, len(policy.agents) * config.lanes)) is not None:
        ahead = int(limiter.tolerance / limiter.samples_per_insert)
    else:
        return ReplayBuffer.create(spec, rows * lanes, lanes, name=name)
    return TrajectoryQueue.create(spec, rows * lanes, lanes, max_unread=max(ahead, lanes), name=name)


class Program(Closing):
    """The program that supervises a node's actors. The kernel kills it, and then its actors, when this process dies."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._result, theirs = os.pipe()
        command = [sys.executable, "-m", f"{__package__}", str(os.getpid()), str(theirs)]
        start: Any = partial(subprocess.Popen, command, stdin=subprocess.PIPE, pass_fds=[theirs])
        self._failed: WorkerFailed | None = None
        try:
            process: Any = start_child(start)
        finally:
            os.close(theirs)
        self._process = process
        with suppress_failed_calls(errno.EPIPE), process.stdin as pipe:  # if it died, `failure` tells
            pipe.write(pickle.dumps(sys.path))
            pipe.write(cloudpickle.dumps(blueprint))

    def failure(self) -> WorkerFailed | None:
        """Why it ended; None while it runs."""
        if self._failed is None and self._process.poll() is not None:
            with os.fdopen(os.dup(self._result), "rb") as file:
                told = file.read()
            died = f"its program ended with exit code {self._process.returncode}"
            self._failed = pickle.loads(told) if told else WorkerFailed(SUPERVISOR, "death", died)
        return self._failed

    def close(self) -> None:
        """Waits for its end, for which its control block asks; then kills it."""
        try:
            self._process.wait(KILL_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._result)
