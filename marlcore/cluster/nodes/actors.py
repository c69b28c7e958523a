"""The actors of another machine: their shared memory, program and uplinks, and their messages with the controller."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...cluster import Mirror
from ...config import EVALUATOR, crews
from ...errors import WorkerFailed
from ...processes import BEGUN, EPISODES, RESTARTS, SHARE, STEPS, Control, Metric, Telemetry
from ...run import Memory, RunSpec, dealt
from ...self_play import SelfPlay, results_in
from .program import Program
from .uplink import Address, Uplink

OTHERS = "others"  # counts the steps of all other actors of the run


@dataclass(frozen=True)
class ActorOrders:
    """The controller's message to a machine's actors."""

    share: int  # the seat's share of the run's steps; steps of its earlier agents count, too
    others: int  # steps that the run's other actors have taken
    addresses: Mapping[str, Address | None] = field(default_factory=dict)  # of the learners, by policy
    evaluated: int = 0  # the run's steps when its last evaluation began


@dataclass(frozen=True)
class Status:
    """The answer of a machine's actors to the controller."""

    steps: int = 0  # of the seat; steps of its earlier agents count, too
    episodes: int = 0  # episodes that ended since the agent's start
    restarts: int = 0  # of the machine's workers
    done: bool = False  # whether the actors have taken their share of steps, and all rows have arrived
    metrics: Sequence[Metric] = ()
    results: Sequence[tuple[int, int]] = ()  # of games: (opponent, outcome)
    figures: dict[str, float] = field(default_factory=dict)  # metrics of the machine's uplinks, by name
    versions: dict[str, int] = field(default_factory=dict)  # of the weights on the machine, by policy
    addresses: dict[str, Address | None] = field(default_factory=dict)  # the sources of weights, by policy
    failed: WorkerFailed | None = None  # the failure that ended the machine's work


class ActorNode:
    """A run's part on a machine with actors. The program that supervises the actors dies with this process."""

    def __init__(
        self, stack: ExitStack, orders: ActorOrders, *, spec: RunSpec, seat: int, epoch: int, taken: int,
        elapsed: float, descriptions: Mapping[str, Mapping[str, Any]], opponents: Any = None,
    ) -> None:  # fmt: skip
        """Makes the machine's part of the run. Raises SharedMemoryFull.

        `taken` is the number of steps that the seat's earlier agents took, `elapsed` the seconds of the run so far,
        `descriptions` has, by policy, the description of the learner's store of weights, and `opponents` is the link to
        the pool of opponents in self-play.
        """
        config = spec.config
        self._crew = crew = crews(config)[1 + seat]
        self._episodes = dict.fromkeys(crew.names, (0, 0))  # by actor: episodes of dead processes, and the newest count
        self._control = stack.enter_context(Control.create([*crew.names, OTHERS, EVALUATOR], epoch=epoch))
        self._telemetry = stack.enter_context(Telemetry.create(crew.names))
        for name, steps in zip(crew.names, dealt(taken, [0] * crew.count, [1] * crew.count), strict=True):
            self._control.workers[name].store(STEPS, steps)
        self._uplinks = [
            Uplink(stack, policy, config, crew, descriptions[policy.name], seat, epoch) for policy in spec.policies
        ]
        self._pool: Mirror | None = None
        self._results: Telemetry | None = None
        self_play: tuple[SelfPlay, ...] = ()
        if opponents is not None:
            seconds, slots = config.cluster.sync_seconds, max(2, config.self_play.pool)
            self._pool = stack.enter_context(Mirror(opponents, mode=slots, sync_seconds=seconds, name="opponents"))
            self._results = stack.enter_context(Telemetry.create(crew.names))
            self_play = (SelfPlay(self._pool.store.handle, self._results.handle),)
        self._order(orders)
        memory = Memory(
            crew=crew,
            run_dir=Path(),
            began=time.monotonic() - elapsed,
            control=self._control.handle,
            telemetry=self._telemetry.handle,
            transitions={uplink.policy.name: uplink.transitions for uplink in self._uplinks},
            weights={uplink.policy.name: uplink.weights for uplink in self._uplinks},
            league=self_play,
        )
        self._program = stack.enter_context(Program(spec, memory))
        stack.callback(self._control.stop)

    def _order(self, orders: ActorOrders) -> None:
        for uplink in self._uplinks:
            uplink.move(orders.addresses.get(uplink.policy.name, uplink.address))
        workers, names = self._control.workers, self._crew.names
        workers[OTHERS].store(STEPS, orders.others)
        workers[EVALUATOR].store(BEGUN, orders.evaluated)
        if orders.share != sum(self._control.notes[name].load(SHARE) for name in names):
            shares = dealt(orders.share, [workers[name].load(STEPS) for name in names], [1] * len(names))
            for name, share in zip(names, shares, strict=True):
                self._control.notes[name].store(SHARE, share)

    def beat(self, orders: ActorOrders) -> Status:
        """Takes new orders; returns the status, with metrics since the last call. Raises Fenced if the seat is lost."""
        self._order(orders)
        for uplink in self._uplinks:
            uplink.check()
        if self._pool is not None:
            self._pool.check()
        workers, notes, names = self._control.workers, self._control.notes, self._crew.names
        finished = all(workers[name].load(STEPS) >= notes[name].load(SHARE) for name in names)
        return Status(
            steps=sum(workers[name].load(STEPS) for name in names),
            episodes=sum(map(self._ended, names)),
            restarts=sum(notes[name].load(RESTARTS) for name in names),
            done=finished and all(uplink.drained() for uplink in self._uplinks),
            metrics=self._telemetry.tail(),
            results=[] if self._results is None else results_in(self._results),
            figures=self._figures(),
            addresses={uplink.policy.name: uplink.address for uplink in self._uplinks},
            versions={uplink.policy.name: uplink.mirror.version for uplink in self._uplinks},
            failed=self._program.failure(),
        )

    @property
    def error(self) -> BaseException | None:
        """The exception that ended a relay, such as Fenced; None while all relays work."""
        return next((uplink.relay.error for uplink in self._uplinks if uplink.relay.error is not None), None)

    def _ended(self, actor: str) -> int:
        """Returns the number of an actor's ended episodes, over all its processes, each of which counts from 0."""
        count, (earlier, last) = self._control.workers[actor].load(EPISODES), self._episodes[actor]
        earlier += last if count < last else 0
        self._episodes[actor] = earlier, count
        return earlier + count

    def _figures(self) -> dict[str, float]:
        stats = [uplink.relay.stats for uplink in self._uplinks]
        sums = ("rows", "bytes", "raw_bytes", "messages", "in_flight", "gaps", "rewinds")
        figures = {name: float(sum(getattr(each, name) for each in stats)) for name in sums}
        if self._results is not None:
            figures["games_lost"] = float(self._results.lost)
        return figures | {f"delay_ms_p{p}": 1000 * max(each.delay(p) for each in stats) for p in (50, 99)}
