"""A node's part of a run: shared memory, a program with the actors, and the traffic of rows and weights; no Ray."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import cloudpickle

from ...closing import Closing
from ...cluster import Mirror
from ...errors import WorkerFailed, suppress_failed_calls
from ...processes import BEGUN, EPISODES, RESTARTS, SHARE, STEPS, Control, Metric, Telemetry, start_child
from ..config import EVALUATOR, AssignedPolicy, Config, Crew, crews
from ..self_play import SelfPlay, results_in
from ..workers import Blueprint, dealt
from .traffic import Address, Traffic

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
    descriptions: Mapping[str, Mapping[str, Any]]  # of the stores of weights, by policy
    opponents: Any = None  # the way to the pool of opponents, in self-play

    @property
    def crew(self) -> Crew:
        return crews(self.config)[1 + self.seat]

    def start(self, orders: Orders) -> Node:
        return Node(self, orders)


@dataclass(frozen=True)
class Orders:
    """The controller's word for a node."""

    share: int  # the seat's steps, earlier holders' included, at which its actors are done
    elsewhere: int  # steps that the run's other actors have taken
    homes: Mapping[str, Address | None] = field(default_factory=dict)  # of their learners, by policy
    evaluated: int = 0  # the run's steps at which its last evaluation began


@dataclass(frozen=True)
class Report:
    """A node's answer."""

    steps: int = 0  # of the seat, earlier holders' included
    episodes: int = 0  # ended since the node's start
    restarts: int = 0  # of its actors
    done: bool = False  # whether the actors have taken their share, and all of its rows have arrived
    metrics: Sequence[Metric] = ()
    results: Sequence[tuple[int, int]] = ()  # of games: the opponent, and how it ended
    figures: dict[str, float] = field(default_factory=dict)  # of its traffic, by name
    versions: dict[str, int] = field(default_factory=dict)  # of the weights that it has, by policy
    homes: dict[str, Address | None] = field(default_factory=dict)  # from which such weights may come, by policy
    failed: WorkerFailed | None = None  # what ended its work


class Node(Closing):
    """A node's part of a run. The program with its actors dies with this process, and its segments go with `close`."""

    def __init__(self, plan: Plan, orders: Orders) -> None:
        """Raises SharedMemoryFull."""
        self._plan, self._crew, config = plan, plan.crew, plan.config
        self._episodes = dict.fromkeys(self._crew.names, (0, 0))  # ended before, and the last count
        with ExitStack() as stack:
            self._control = stack.enter_context(Control.create([*self._crew.names, ELSEWHERE, EVALUATOR]))
            self._telemetry = stack.enter_context(Telemetry.create(self._crew.names))
            each = [1] * self._crew.count
            for name, steps in zip(self._crew.names, dealt(plan.taken, [0] * len(each), each), strict=True):
                self._control.workers[name].store(STEPS, steps)
            self._traffic = [stack.enter_context(self._traffic_of(policy)) for policy in plan.policies]
            placed = tuple(traffic.blueprint() for traffic in self._traffic)
            self._pool: Mirror | None = None
            self._results: Telemetry | None = None
            self_play = self._self_play(stack)
            began = time.monotonic() - plan.elapsed
            handles = self._control.handle, self._telemetry.handle
            blueprint = Blueprint(plan.env_fn, config, placed, *handles, began, self._crew, self_play)
            self._order(orders)
            self._program = Program(blueprint)
            stack.callback(self._program.close)
            stack.callback(self._control.stop)
            self._stack = stack.pop_all()

    def _traffic_of(self, policy: AssignedPolicy) -> Traffic:
        plan = self._plan
        return Traffic(policy, plan.config, self._crew, plan.descriptions[policy.name], plan.seat, plan.epoch)

    def _self_play(self, stack: ExitStack) -> tuple[SelfPlay, ...]:
        """The opponents on this node, which come from the learner's, and its games; empty without self-play."""
        link, size, cluster = self._plan.opponents, self._plan.config.self_play.pool, self._plan.config.cluster
        if link is None:
            return ()
        pool = Mirror(link, mode=max(2, size), sync_seconds=cluster.sync_seconds, name="opponents")
        self._pool = stack.enter_context(pool)
        self._results = stack.enter_context(Telemetry.create(self._crew.names))
        return (SelfPlay(pool.store.handle, self._results.handle),)

    def _order(self, orders: Orders) -> None:
        for traffic in self._traffic:
            traffic.move(orders.homes.get(traffic.policy.name, traffic.home))
        workers, names = self._control.workers, self._crew.names
        workers[ELSEWHERE].store(STEPS, orders.elsewhere)
        workers[EVALUATOR].store(BEGUN, orders.evaluated)
        if orders.share != sum(self._control.notes[name].load(SHARE) for name in names):
            shares = dealt(orders.share, [workers[name].load(STEPS) for name in names], [1] * len(names))
            for name, share in zip(names, shares, strict=True):
                self._control.notes[name].store(SHARE, share)

    def beat(self, orders: Orders) -> Report:
        """Takes new orders; the report of what happened since the last one. Raises Fenced: the seat is lost."""
        self._order(orders)
        for traffic in self._traffic:
            traffic.check()
        if self._pool is not None:
            self._pool.check()
        workers, notes, names = self._control.workers, self._control.notes, self._crew.names
        rest = sum(notes[name].load(SHARE) - min(workers[name].load(STEPS), notes[name].load(SHARE)) for name in names)
        return Report(
            steps=sum(workers[name].load(STEPS) for name in names),
            episodes=sum(map(self._ended, names)),
            restarts=sum(notes[name].load(RESTARTS) for name in names),
            done=not rest and all(traffic.drained() for traffic in self._traffic),
            metrics=self._telemetry.tail(),
            results=[] if self._results is None else results_in(self._results),
            figures=self._figures(),
            homes={traffic.policy.name: traffic.home for traffic in self._traffic},
            versions={traffic.policy.name: traffic.mirror.version for traffic in self._traffic},
            failed=self._program.failure(),
        )

    @property
    def error(self) -> BaseException | None:
        """What ended a relay, such as Fenced; None while all work."""
        errors = (traffic.relay.error for traffic in self._traffic)
        return next((error for error in errors if error is not None), None)

    def _ended(self, actor: str) -> int:
        """Episodes of an actor; the process that follows a dead one counts from 0 again."""
        count, (before, last) = self._control.workers[actor].load(EPISODES), self._episodes[actor]
        before += last if count < last else 0
        self._episodes[actor] = before, count
        return before + count

    def _figures(self) -> dict[str, float]:
        stats = [traffic.relay.stats for traffic in self._traffic]
        sums = ("rows", "bytes", "raw_bytes", "messages", "in_flight", "gaps", "rewinds")
        figures = {name: float(sum(getattr(each, name) for each in stats)) for name in sums}
        if self._results is not None:
            figures["games_lost"] = float(self._results.lost)
        return figures | {f"delay_ms_p{p}": 1000 * max(each.delay(p) for each in stats) for p in (50, 99)}

    def close(self) -> None:
        """Ends the actors, then the traffic, and removes the segments."""
        self._stack.close()


class Program(Closing):
    """The program that supervises a node's actors. The kernel kills it, and then its actors, when this process dies."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._result, theirs = os.pipe()
        command = [sys.executable, "-m", f"{__package__}", str(os.getpid()), str(theirs)]
        start: Any = partial(subprocess.Popen, command, stdin=subprocess.PIPE, pass_fds=[theirs])
        self._failed: WorkerFailed | None = None
        try:
            process: Any = start_child(start)
        except BaseException:
            os.close(self._result)
            raise
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
