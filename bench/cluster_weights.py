"""Weights to the nodes of a local Ray cluster, over loopback: `python -m bench.cluster_weights`.

A learner publishes 50 MB and copies as many bytes with memcpy, in turns; a mirror on each node fetches what it can.
"""

import argparse
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import nn

from marlcore import ParameterStore
from marlcore.cluster import Mirror, PorterActor, WeightsLink

from .machine import describe_machine, parse_if_idle, publish

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from ray_nodes import RayNodes, driver

MOST = 1.2  # of memcpy's time, which a publication may take


@dataclass(frozen=True)
class Figures:
    """Medians in seconds of `rounds` turns; `delays`: from a publication to a node's copy, p50 and p99."""

    nodes: int
    nbytes: int
    rounds: int
    publish_s: float
    memcpy_s: float
    copied: int  # rows that the porter put into Ray's store
    fetched: int  # by all nodes together
    delays_s: tuple[float, float]

    @property
    def ratio(self) -> float:
        return self.publish_s / self.memcpy_s


class Follower:
    """A node's mirror, as an actor of Ray."""

    def __init__(self, name: str) -> None:
        self._mirror = Mirror(WeightsLink(name))
        self._seen: list[tuple[int, float]] = []

    def follow(self, last: int, timeout: float) -> tuple[int, list[tuple[int, float]]]:
        """Notes when each version came, up to the last; the rows fetched, and (version, time)."""
        store, deadline = self._mirror.store, monotonic() + timeout
        while not self._seen or self._seen[-1][0] < last:
            self._mirror.check()
            newest = self._seen[-1][0] if self._seen else 0
            if store.wait(newest, 1.0):
                self._seen.append((store.version, monotonic()))
            elif monotonic() > deadline:
                raise TimeoutError(f"version {last}: expected within {timeout} s, got {newest}")
        return self._mirror.fetched, self._seen

    def close(self) -> None:
        self._mirror.close()


def turns(
    publisher: Any, source: np.ndarray, to: np.ndarray, rounds: int, pause_s: float
) -> Iterator[tuple[float, ...]]:
    """The time at which each publication began, its seconds, and those of a memcpy after it."""
    for turn in range(rounds):
        begin = monotonic()
        publisher.publish()
        middle = monotonic()
        np.copyto(to[turn % len(to)], source)
        yield begin, middle - begin, monotonic() - middle
        sleep(pause_s)


def measure(nodes: int, nbytes: int = 50_000_000, rounds: int = 200, pause_s: float = 0.05) -> Figures:
    """The figures with a mirror on each of so many nodes; with none, what the learner does alone."""
    import ray

    model = nn.ParameterList([torch.ones(nbytes // 4)])
    source, to = np.ones(nbytes, np.uint8), np.ones((3, nbytes), np.uint8)  # as many as the store has slots
    with ExitStack() as stack:
        store = stack.enter_context(ParameterStore.create(model, "triple_buffer"))
        publisher = stack.enter_context(store.publisher(model))
        followers, porter = [], None
        if nodes:
            cluster = stack.enter_context(RayNodes(nodes))
            stack.enter_context(driver(cluster.address))
            porter = PorterActor.start(store.handle, "porter")
            actor = ray.remote(num_cpus=0)(Follower)
            followers = [actor.options(resources={f"node{i}": 1}).remote("porter") for i in range(nodes)]
            publisher.publish()
            ray.get([follower.follow.remote(1, 600.0) for follower in followers])
        first = store.version + 1
        seen = [follower.follow.remote(store.version + rounds, 600.0) for follower in followers]
        began, published, copied = zip(*turns(publisher, source, to, rounds, pause_s), strict=True)
        answers = ray.get(seen) if nodes else []
        delays = [at - began[v - first] for _, arrivals in answers for v, at in arrivals if v >= first]
        p50, p99 = np.percentile(delays or [0.0], [50, 99]).tolist()
        copies = ray.get(porter.stats.remote())["copies"] if nodes else 0
        ray.get([follower.close.remote() for follower in followers]) if nodes else None
    fetched = sum(rows for rows, _ in answers)
    return Figures(nodes, nbytes, rounds, median(published), median(copied), copies, fetched, (p50, p99))


def table(figures: list[Figures]) -> Table:
    head = ["nodes", "publish ms", "memcpy ms", "ratio", "rows put", "rows fetched", "delay p50 ms", "p99 ms"]
    shown = Table(*head, title=f"{figures[0].nbytes / 1e6:g} MB, {figures[0].rounds} publications")
    for each in figures:
        times = (each.publish_s, each.memcpy_s)
        delays = (f"{delay * 1e3:.1f}" for delay in each.delays_s)
        counts = (str(each.copied), str(each.fetched))
        shown.add_row(str(each.nodes), *(f"{t * 1e3:.2f}" for t in times), f"{each.ratio:.2f}", *counts, *delays)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster_weights", description=__doc__.partition(":")[0])
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=200)
    options = parse_if_idle(parser)
    machine = describe_machine()
    figures = [measure(nodes, rounds=options.rounds) for nodes in (0, options.nodes)]
    plain = [asdict(each) | {"ratio": each.ratio, "reached": each.ratio <= MOST} for each in figures]
    publish(machine, [table(figures)], 100, options.json, weights=plain)


if __name__ == "__main__":
    main()
