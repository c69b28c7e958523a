"""Rows between two Ray nodes of this machine, beside Ray alone and pickled lists: `python -m bench cluster_rows`.

CPU-seconds are those of every process of the cluster, both sides' raylets and workers. The rows lie in the sender's
lanes before the clock starts: each round is a new epoch, in which all rows are sent again.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import ray
from ray_nodes import RayNodes, driver

import marlcore as mc
from marlcore.cluster import Bookings, Ingest, RayLink, Relay, start_ingest

from ..figures import records
from ..machine import publish
from ..processes import cpu_of_descendants, medians

FRAMES = mc.TransitionSpec(mc.Field((84, 84), "uint8"), mc.Field((), "int64"))
SMALL = mc.TransitionSpec(mc.Field((4,)), mc.Field((), "int64"))
LANES, FRAME_ROWS, SMALL_ROWS = 16, 32_000, 3_200_000
LIST_ROWS, LISTS = 1000, 100
MESSAGE, PIECES = 32 << 20, 7  # as large as a relay's; together as many bytes as the frames
IDLE = True
ROUNDS = 5
TIMES = 4  # that all rows are sent in a round, since an idle cluster takes CPU time too
DELAY_RATE, DELAY_S = 20_000, 10.0  # rows a second, and for how long


class Sink:
    """Receives what Ray alone carries, and pickled lists, which it writes to a replay."""

    def __init__(self) -> None:
        self._replay = mc.ReplayBuffer.create(SMALL, 10**6)
        self._writer = self._replay.writer()

    def take(self, message: np.ndarray) -> int:
        return len(message)

    def add(self, rows: list[Any]) -> int:
        obs, action, reward = zip(*rows, strict=True)
        self._writer.add_batch(np.array(obs, np.float32), np.array(action), np.array(reward))
        return len(rows)


class Sender:
    """The other node, which sends: a full replay's relay, Ray alone, or pickled lists."""

    def __init__(self, spec: mc.TransitionSpec, rows: int) -> None:
        self._replay, self._epoch, each = mc.ReplayBuffer.create(spec, rows, LANES), 0, 1000
        obs = np.random.default_rng(0).integers(0, 255, (each, *spec.obs.shape)).astype(spec.obs.numpy)
        for lane in range(LANES):
            with self._replay.writer(lane=lane) as writer:
                for _ in range(rows // LANES // each):
                    writer.add_batch(obs, np.arange(each), np.zeros(each))

    def relay(self, ingest: Any) -> tuple[int, int, float]:
        """Sends all rows several times; returns their bytes, their number, and the seconds."""
        nbytes, rows, began = 0, 0, time.perf_counter()
        for _ in range(TIMES):
            with self._relay(self._replay, ingest) as relay:
                if not relay.drain(300.0):
                    raise TimeoutError("the rows did not arrive")
                nbytes, rows = nbytes + relay.stats.bytes, rows + relay.stats.rows
        return nbytes, rows, time.perf_counter() - began

    def _relay(self, replay: mc.ReplayBuffer, ingest: Any) -> Relay:
        """A relay in a new epoch, in which it sends all rows."""
        self._epoch += 1
        return Relay(replay, RayLink(ingest, "rows"), epoch=self._epoch).start()

    def ray_alone(self, sink: Any) -> tuple[int, int, float]:
        data, messages = np.ones((PIECES, MESSAGE), np.uint8), TIMES * PIECES
        seconds = _in_flight(lambda i: sink.take.remote(ray.put(data[i % PIECES])), messages)
        return messages * MESSAGE, 0, seconds

    def lists(self, sink: Any) -> tuple[int, int, float]:
        def send(_: int) -> Any:
            return sink.add.remote([([0.1, 0.2, 0.3, 0.4], i, 0.5) for i in range(LIST_ROWS)])

        return 0, LISTS * LIST_ROWS, _in_flight(send, LISTS)

    def delays(self, ingest: Any) -> tuple[float, float]:
        """The delay's median and 99th percentile in seconds, of rows that come at a steady rate."""
        node = mc.ReplayBuffer.create(SMALL, 200_000, LANES)
        with self._relay(node, ingest) as relay, node.vector_writer() as writer:
            relay.drain(60.0)
            began, added = time.perf_counter(), 0
            while (now := time.perf_counter() - began) < DELAY_S:
                while added < now * DELAY_RATE:
                    writer.add(np.zeros((LANES, 4), np.float32), np.zeros(LANES, np.int64), np.zeros(LANES))
                    added += LANES
                time.sleep(0.002)
            return relay.stats.delay(50), relay.stats.delay(99)


def _in_flight(send: Callable[[int], Any], count: int) -> float:
    """The seconds of `count` calls of Ray, up to three of them at a time."""
    began, flight = time.perf_counter(), []
    for i in range(count):
        flight.append(send(i))
        if len(flight) > 2:
            ray.get(flight.pop(0))
    ray.get(flight)
    return time.perf_counter() - began


def make_ingest(handle: Any, bookings: Any) -> dict[str, Ingest]:
    return {"rows": Ingest(mc.ReplayBuffer.attach(handle), Bookings.attach(bookings), [range(LANES)])}


def measure(way: str, run: Callable[[], tuple[int, int, float]]) -> dict[str, Any]:
    """Medians: MB and rows a second, CPU-seconds for each GB and each million rows; 0 where a way has no such unit."""
    run()
    taken = []
    for _ in range(ROUNDS):
        before = cpu_of_descendants()  # which are the cluster's
        nbytes, count, seconds = run()
        cpu = cpu_of_descendants() - before
        rates = {"way": way, "mb_per_s": nbytes / seconds / 1e6, "rows_per_s": count / seconds}
        of_bytes, of_rows = cpu / nbytes * 1e9 if nbytes else 0.0, cpu / count * 1e6 if count else 0.0
        taken.append({**rates, "cpu_s_per_gb": of_bytes, "cpu_s_per_million": of_rows})
    return medians(taken)


def measure_all() -> tuple[list[dict[str, Any]], list[float]]:
    """The ways, and the delay's median and 99th percentile in seconds."""
    sink = ray.remote(Sink).options(resources={"node0": 1}, num_cpus=0).remote()
    there = ray.remote(Sender).options(resources={"node1": 1}, num_cpus=0)
    figures: list[dict[str, Any]] = []
    delays: list[float] = []

    def relayed(name: str, spec: mc.TransitionSpec, rows: int, beside: str, method: str) -> None:
        with mc.ReplayBuffer.create(spec, rows, LANES) as home, Bookings.create(LANES) as bookings:
            ingest = start_ingest(partial(make_ingest, home.handle, bookings.handle))
            sender = there.remote(spec, rows)
            figures.append(measure(name, lambda: ray.get(sender.relay.remote(ingest))))
            other = getattr(sender, method)
            figures.append(measure(beside, lambda: ray.get(other.remote(sink))))
            if spec is SMALL:
                delays.extend(ray.get(sender.delays.remote(ingest)))
            ray.kill(sender)
            ray.kill(ingest)

    relayed("frames, 84 x 84 bytes", FRAMES, FRAME_ROWS, "Ray alone, 32 MB a message", "ray_alone")
    relayed("rows of 4 floats", SMALL, SMALL_ROWS, "pickled lists of 1,000 rows in calls", "lists")
    return figures, delays


def main(options: argparse.Namespace) -> None:
    with RayNodes(2) as nodes, driver(nodes.address):
        figures, (middle, late) = measure_all()
    delay = f"\ndelay at {DELAY_RATE} rows/s: p50 {middle * 1e3:.0f} ms, p99 {late * 1e3:.0f} ms"
    publish(options, records(figures) + delay)
