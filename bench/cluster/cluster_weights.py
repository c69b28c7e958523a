"""Weights to the nodes of a local Ray cluster, over loopback: `python -m bench cluster_weights`.

A learner publishes 50 MB and copies as many bytes with memcpy, in turns; a mirror on each node fetches what it can.
"""

import argparse
from contextlib import ExitStack
from time import monotonic, sleep
from typing import Any

import numpy as np
import torch
from ray_nodes import RayNodes, driver
from torch import nn

from marlcore import ParameterStore
from marlcore.cluster import Mirror, PorterActor, WeightsLink

from ..figures import records
from ..machine import publish

IDLE = True
NODES = 3
MOST = 1.2  # of memcpy's time, which a publication may take


class Follower:
    """A node's mirror, as an actor of Ray."""

    def __init__(self, name: str) -> None:
        self._mirror = Mirror(WeightsLink(name))
        self._seen: list[tuple[int, float]] = []

    def follow(self, last: int, timeout: float) -> tuple[int, list[tuple[int, float]]]:
        """Notes when each version comes, up to `last`; returns the rows fetched, and (version, time) pairs."""
        store, deadline = self._mirror.store, monotonic() + timeout
        while not self._seen or self._seen[-1][0] < last:
            self._mirror.check()
            newest = self._seen[-1][0] if self._seen else 0
            if store.wait(newest, 1.0):
                self._seen.append((store.version, monotonic()))
            elif monotonic() > deadline:
                raise TimeoutError(f"version {last}: expected within {timeout} s, got {newest}")
        return self._mirror.fetched, self._seen


def measure(nodes: int, nbytes: int = 50_000_000, rounds: int = 200, pause_s: float = 0.05) -> dict[str, Any]:
    """Medians of `rounds` publications with a mirror on each of `nodes` nodes; with 0 nodes, the learner is alone."""
    import ray

    # "copied" are the rows that the porter put into Ray's store, "fetched" those that all nodes fetched
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
        times = []
        for turn in range(rounds):
            began = monotonic()
            publisher.publish()
            published = monotonic()
            np.copyto(to[turn % len(to)], source)
            times.append((began, published, monotonic()))
            sleep(pause_s)
        began, published, copied = np.array(times).T
        answers = ray.get(seen) if nodes else []
        delays = [at - began[v - first] for _, arrivals in answers for v, at in arrivals if v >= first]
        p50, p99 = np.percentile(delays or [0.0], [50, 99]).tolist()
        figures = {"nodes": nodes, "nbytes": nbytes, "rounds": rounds, "fetched": sum(rows for rows, _ in answers)}
        figures |= {"copied": ray.get(porter.stats.remote())["copies"] if nodes else 0}
    figures |= {"publish_s": float(np.median(published - began)), "memcpy_s": float(np.median(copied - published))}
    ratio = figures["publish_s"] / figures["memcpy_s"]
    return {**figures, "p50_s": p50, "p99_s": p99, "ratio": ratio, "reached": "yes" if ratio <= MOST else "no"}


def main(options: argparse.Namespace) -> None:
    publish(options, records([measure(nodes) for nodes in (0, NODES)]))
