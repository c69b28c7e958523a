"""Rows between two Ray nodes of this machine, beside Ray alone and pickled lists: `python -m bench.cluster_rows`.

CPU-seconds are those of every process of the cluster, both sides' raylets and workers. The rows lie in the sender's
lanes before the clock starts: each round is a new epoch, in which all of them are sent again.
"""

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

import marlcore as mc
from marlcore.cluster import Bookings, Ingest, RayLink, Relay, start_ingest

from .cpu_time import cpu_of_descendants
from .machine import describe_machine, parse_if_idle, publish

FRAMES = mc.TransitionSpec(mc.Field((84, 84), "uint8"), mc.Field((), "int64"))
SMALL = mc.TransitionSpec(mc.Field((4,)), mc.Field((), "int64"))
LANES, FRAME_ROWS, SMALL_ROWS = 16, 32_000, 3_200_000
LIST_ROWS, LISTS = 1000, 100
MESSAGE, PIECES = 16 << 20, 14  # together as many bytes as the frames
TIMES = 4  # that all rows are sent in a round, since an idle cluster takes CPU time too
DELAY_RATE, DELAY_S = 20_000, 10.0  # rows a second, and for how long

Measured = tuple[int, float]  # bytes or rows, and seconds


@dataclass(frozen=True)
class Figure:
    """A way to send rows: MB and rows a second, medians; CPU-seconds for each GB and each million rows."""

    way: str
    mb_per_s: float
    rows_per_s: float
    cpu_s_per_gb: float
    cpu_s_per_million: float


class Sink:
    """The receiver of what Ray carries alone, and of pickled lists, which it writes to a replay."""

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
    """The other node: a full replay and its relay, or what stands beside it."""

    def __init__(self, spec: mc.TransitionSpec, rows: int) -> None:
        self._replay = mc.ReplayBuffer.create(spec, rows, LANES)
        self._epoch = 0
        each = 1000
        rng = np.random.default_rng(0)
        obs = rng.integers(0, 255, (each, *spec.obs.shape)).astype(spec.obs.numpy)
        for lane in range(LANES):
            with self._replay.writer(lane=lane) as writer:
                for _ in range(rows // LANES // each):
                    writer.add_batch(obs, np.arange(each), np.zeros(each))

    def relay(self, ingest: Any) -> tuple[int, int, float]:
        """Sends all rows several times: their bytes, their number, and seconds."""
        nbytes, rows, began = 0, 0, time.perf_counter()
        for _ in range(TIMES):
            self._epoch += 1
            with Relay(self._replay, RayLink(ingest, "rows"), epoch=self._epoch).start() as relay:
                if not relay.drain(300.0):
                    raise TimeoutError("the rows did not arrive")
                nbytes, rows = nbytes + relay.stats.bytes, rows + relay.stats.rows
        return nbytes, rows, time.perf_counter() - began

    def ray_alone(self, sink: Any, messages: int) -> tuple[int, int, float]:
        import ray

        data, flight = np.ones((PIECES, MESSAGE), np.uint8), []
        began = time.perf_counter()
        for i in range(messages):
            flight.append(sink.take.remote(ray.put(data[i % PIECES])))
            if len(flight) > 2:
                ray.get(flight.pop(0))
        ray.get(flight)
        return messages * MESSAGE, 0, time.perf_counter() - began

    def lists(self, sink: Any, count: int) -> tuple[int, int, float]:
        import ray

        began, flight = time.perf_counter(), []
        for _ in range(count):
            rows = [([0.1, 0.2, 0.3, 0.4], i, 0.5) for i in range(LIST_ROWS)]
            flight.append(sink.add.remote(rows))
            if len(flight) > 2:
                ray.get(flight.pop(0))
        ray.get(flight)
        return 0, count * LIST_ROWS, time.perf_counter() - began

    def delays(self, ingest: Any) -> tuple[float, float]:
        """The delay's median and 99th percentile in seconds, of rows that come at a steady rate."""
        self._epoch += 1
        node = mc.ReplayBuffer.create(SMALL, 200_000, LANES)
        with Relay(node, RayLink(ingest, "rows"), epoch=self._epoch).start() as relay, node.vector_writer() as writer:
            relay.drain(60.0)
            began, added = time.perf_counter(), 0
            while (now := time.perf_counter() - began) < DELAY_S:
                while added < now * DELAY_RATE:
                    writer.add(np.zeros((LANES, 4), np.float32), np.zeros(LANES, np.int64), np.zeros(LANES))
                    added += LANES
                time.sleep(0.002)
            return relay.stats.delay(50), relay.stats.delay(99)


def cpu_seconds() -> float:
    """Of this process's descendants, which are the cluster's."""
    return sum(cpu_of_descendants(os.getpid()).values())


@contextmanager
def two_nodes() -> Iterator[Any]:
    import ray
    from ray.cluster_utils import Cluster

    store = 400 << 20
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "object_store_memory": store})
    try:
        cluster.add_node(num_cpus=2, object_store_memory=store, resources={"sender": 4})
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()


def make_ingest(handle: Any, bookings: Any) -> dict[str, Ingest]:
    return {"rows": Ingest(mc.ReplayBuffer.attach(handle), Bookings.attach(bookings), [range(LANES)])}


def measure(way: str, run: Callable[[], tuple[int, int, float]], rounds: int) -> Figure:
    run()
    mb, rows, cpu_gb, cpu_rows = [], [], [], []
    for _ in range(rounds):
        before = cpu_seconds()
        nbytes, count, seconds = run()
        cpu = cpu_seconds() - before
        mb.append(nbytes / seconds / 1e6)
        rows.append(count / seconds)
        cpu_gb.append(cpu / nbytes * 1e9 if nbytes else 0.0)
        cpu_rows.append(cpu / count * 1e6 if count else 0.0)
    return Figure(way, median(mb), median(rows), median(cpu_gb), median(cpu_rows))


def measure_all(ray: Any, rounds: int) -> tuple[list[Figure], tuple[float, float]]:
    here = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
        ray.get_runtime_context().get_node_id(), soft=False
    )
    sink = ray.remote(Sink).options(scheduling_strategy=here, num_cpus=0).remote()
    there = ray.remote(Sender).options(resources={"sender": 1}, num_cpus=0)
    figures = []

    def relayed(name: str, spec: mc.TransitionSpec, rows: int) -> None:
        with mc.ReplayBuffer.create(spec, rows, LANES) as home, Bookings.create(LANES) as bookings:
            ingest = start_ingest(partial(make_ingest, home.handle, bookings.handle))
            sender = there.remote(spec, rows)
            figures.append(measure(name, lambda: ray.get(sender.relay.remote(ingest)), rounds))
            alone = lambda: ray.get(sender.ray_alone.remote(sink, TIMES * PIECES))  # noqa: E731
            if spec is FRAMES:
                figures.append(measure("Ray alone, 16 MB a message", alone, rounds))
            else:
                lists = lambda: ray.get(sender.lists.remote(sink, LISTS))  # noqa: E731
                figures.append(measure("pickled lists of 1,000 rows in calls", lists, rounds))
                delays.extend(ray.get(sender.delays.remote(ingest)))
            ray.kill(sender)
            ray.kill(ingest)

    delays: list[float] = []
    relayed("frames, 84 x 84 bytes", FRAMES, FRAME_ROWS)
    relayed("rows of 4 floats", SMALL, SMALL_ROWS)
    return figures, (delays[0], delays[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N")
    options = parse_if_idle(parser)
    with two_nodes() as ray:
        figures, (middle, late) = measure_all(ray, options.rounds)
    table = Table("way", "MB/s", "10^6 rows/s", "CPU-s / GB", "CPU-s / 10^6 rows")
    for figure in figures:
        numbers = (figure.mb_per_s, figure.rows_per_s / 1e6, figure.cpu_s_per_gb, figure.cpu_s_per_million)
        table.add_row(figure.way, *(f"{number:.2f}" if number else "" for number in numbers))
    delay = f"delay at {DELAY_RATE} rows/s: p50 {middle * 1e3:.0f} ms, p99 {late * 1e3:.0f} ms"
    delays = {"p50": middle, "p99": late}
    publish(
        describe_machine(),
        [table, delay],
        90,
        options.json,
        figures=[asdict(each) for each in figures],
        delays_s=delays,
    )


if __name__ == "__main__":
    main()
