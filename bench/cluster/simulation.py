"""Rows from 10, 100 and 1,000 nodes into one ingest, over a modelled network: `python -m bench cluster_simulation`.

The relays, the ingest and their memory are the real ones, and the time that the ingest takes for a message is
measured. The network and Ray are numbers: a latency, the home's bandwidth, and Ray's time at home for a call and for
the bytes of its argument. Simulated time moves in steps of a relay's nap.
"""

import argparse
import heapq
import resource
import time
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

import marlcore as mc
from marlcore.cluster import Bookings, Ingest, Relay
from marlcore.cluster.relay import INLINE_BYTES

from ..machine import add_output, publish
from ..pages.tables import records

LATENCY_S, BANDWIDTH = 0.2e-3, 1.25e9  # one way; bytes a second into the home's machine, 10 Gbit/s
CALL_S, PUT_CALL_S, BYTE_S = 0.65e-3, 5e-3, 0.33e-9  # Ray's at home: a call, one with an object, and each byte of it
LANES, LANE_ROWS = 8, 4096
TICK_S = 0.005
SPECS = {
    "4 floats": mc.TransitionSpec(mc.Field((4,)), mc.Field((), "int64")),
    "84 x 84 bytes": mc.TransitionSpec(mc.Field((84, 84), "uint8"), mc.Field((), "int64")),
}
CASES = [("4 floats", 2_000, LANE_ROWS), ("84 x 84 bytes", 80, 32)]  # rows a second and node, rows of a lane


@dataclass
class World:
    """The simulated clock, the network into the home, and the ingest's one thread."""

    ingest: Ingest
    now: float = 0.0
    network_free: float = 0.0
    ingest_free: float = 0.0
    busy: dict[str, float] = field(default_factory=lambda: {"ingest": 0.0, "ray": 0.0, "network": 0.0})
    events: list[tuple[float, int, Any]] = field(default_factory=list)
    number: Any = field(default_factory=count)

    def at(self, when: float, action: Any) -> None:
        heapq.heappush(self.events, (when, next(self.number), action))

    def advance(self, until: float) -> None:
        while self.events and self.events[0][0] <= until:
            self.now, _, action = heapq.heappop(self.events)
            action()
        self.now = until

    def arrive(self, message: np.ndarray, answer: "Future[bool]") -> None:
        """The message is at home: Ray hands it to the ingest when that has done what came before."""
        began = time.perf_counter()
        taken = self.ingest.put(message)
        spent = time.perf_counter() - began
        called = CALL_S if len(message) <= INLINE_BYTES else PUT_CALL_S + len(message) * BYTE_S
        self.ingest_free = max(self.ingest_free, self.now) + called + spent
        self.busy["ingest"] += spent
        self.busy["ray"] += called
        self.at(self.ingest_free + LATENCY_S, lambda: answer.set_result(taken))


class SimulatedLink:
    """A relay's link through the modelled network."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.open = world.ingest.open

    def send(self, message: np.ndarray) -> "Future[bool]":
        world, answer = self._world, Future()
        carried = len(message) / BANDWIDTH
        world.network_free = max(world.network_free, world.now + LATENCY_S) + carried
        world.busy["network"] += carried
        sent = message.copy()
        world.at(world.network_free, lambda: world.arrive(sent, answer))
        return answer


def simulate(rows: str, rate: int, lane_rows: int, nodes: int, seconds: float) -> dict[str, Any]:
    """What a number of nodes came to."""
    spec, rng = SPECS[rows], np.random.default_rng(0)
    with ExitStack() as stack:
        home = stack.enter_context(mc.ReplayBuffer.create(spec, nodes * LANES * lane_rows, nodes * LANES))
        bookings = stack.enter_context(Bookings.create(home.lanes))
        seats = [range(i * LANES, (i + 1) * LANES) for i in range(nodes)]
        world = World(stack.enter_context(Ingest(home, bookings, seats)))
        relays, writers = [], []
        for seat in range(nodes):
            node = stack.enter_context(mc.ReplayBuffer.create(spec, LANES * lane_rows, LANES))
            link = SimulatedLink(world)
            relays.append(stack.enter_context(Relay(node, link, seat=seat, clock=lambda: world.now)))
            writers.append(stack.enter_context(node.vector_writer()))
        obs = np.zeros((LANES, *spec.obs.shape), spec.obs.numpy)
        action, reward = np.zeros(LANES, np.int64), np.zeros(LANES)
        due, polling = rng.random(nodes), 0.0
        for tick in range(int(seconds / TICK_S)):
            world.advance(tick * TICK_S)
            due += rate * TICK_S / LANES
            for i in range(nodes):
                for _ in range(int(due[i])):
                    writers[i].add(obs, action, reward)
                due[i] %= 1
            began = time.process_time()
            for relay in relays:
                relay.poll()
            polling += time.process_time() - began
        stats = [relay.stats for relay in relays]
        delays = np.array([delay for each in stats for delay in each.delays])
        totals = {name: sum(getattr(each, name) for each in stats) / seconds for name in ("rows", "bytes", "messages")}
        return {
            "rows": rows,
            "nodes": nodes,
            **{f"{name}_per_s": total for name, total in totals.items()},
            **{f"{who}_share": busy / seconds for who, busy in world.busy.items()},  # of one core, and of the bandwidth
            "relay_share": polling / seconds / nodes,
            **{f"p{p}_ms": float(np.percentile(delays, p)) * 1e3 for p in (50, 99)},
            "lost": bookings.lost,
        }


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seconds", type=float, default=3.0, help="of simulated time")
    parser.add_argument("--nodes", type=int, nargs="+", default=[10, 100, 1000])
    add_output(parser, idle=True)


def main(options: argparse.Namespace) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each node's segment and writer have descriptors
    cases = [(*case, nodes) for case in CASES for nodes in options.nodes if (case[0], nodes) != ("84 x 84 bytes", 1000)]
    figures = [simulate(*case, options.seconds) for case in cases]  # 1,000 nodes' frames exceed this memory
    publish(options, records(figures), figures=figures)
