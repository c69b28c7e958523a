"""marlcore beside RLlib's APPO, IMPALA and PPO on two local Ray nodes: `python -m bench cluster_peers`.

Every side trains on CartPole with as many actors and copies, the same two networks, one torch thread and one pass over
batches of the same size. The sides take turns, each on a new cluster. CPU-seconds are those of all processes of a side,
Ray's own included; those of the start are given apart.
"""

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from statistics import median
from typing import Any

import gymnasium
import psutil
import torch
from ray_nodes import RayNodes

import marlcore as mc

from ..figures import records
from ..machine import add_output, publish, say
from ..peers import rllib
from ..peers.rllib import NODES, Tell, Work
from ..processes import cpu_of_descendants, in_turns
from ..runs.training import endless

ROUNDS, SECONDS, WARM_S = 3, 30.0, 10.0  # a measurement begins so long after the first update
LOOK_S = 0.2  # between looks at the CPU time
Mark = tuple[float, float, int, int, float]  # a moment: time, CPU-seconds, rows sampled and trained, mean return
GOALS = {"APPO": 20, "PPO": 5}  # times whose rate per CPU-second marlcore's must be


def between(first: Mark, last: Mark) -> dict[str, float]:
    """A side's rates between two moments, what had been spent before the first, and the mean return at the end."""
    seconds, cpu_s, sampled, trained, _ = (after - before for before, after in zip(first, last, strict=True))
    rates = {"sampled_per_s": sampled / seconds, "trained_per_s": trained / seconds}
    rates |= {"sampled_per_cpu_s": sampled / cpu_s, "trained_per_cpu_s": trained / cpu_s}
    return {**rates, "cores": cpu_s / seconds, "start_cpu_s": first[1], "returns": last[-1]}


def train_ours(work: Work, address: str, tell: Tell) -> None:
    """marlcore's PPO, an actor on this node and one on the other."""
    torch.set_num_threads(1)
    ppo = mc.PPO(
        learning_rate=work.learning_rate, hidden=(work.hidden, work.hidden), activation=work.activation, epochs=1,
        batch_size=work.batch, minibatch_size=work.minibatch,
    )  # fmt: skip
    config = mc.Config(
        actor=mc.ActorConfig(envs=work.copies),
        learner=mc.LearnerConfig(gamma=work.gamma, device="cpu"),
        cluster=mc.ClusterConfig(address, nodes=1, actors_per_node=work.actors - 1, lease_seconds=16.0),
    )
    vectors = partial(gymnasium.make_vec, "CartPole-v1", work.copies, vectorization_mode="vector_entry_point")
    env = vectors if work.vectorized else mc.NamedEnvironment("gymnasium:CartPole-v1")
    with endless(env, ppo, config) as run:
        while (status := run.status()).running:
            trained = sum(status.updates.values()) * work.minibatch
            if not tell(status.steps, trained, sum(status.returns.values())):
                break
            time.sleep(1.0)


def take_part(train: Callable[[str, Tell], None], pipe: Connection) -> None:
    """The program of a side: starts its cluster, and trains until its parent has seen enough."""

    def tell(*figures: float) -> bool:
        pipe.send(figures)
        return bool(pipe.recv())

    with RayNodes(NODES, cpus=1) as nodes:
        train(nodes.address, tell)


def measure(train: Callable[[str, Tell], None], warm_s: float, seconds: float) -> dict[str, float]:
    """A side's figures between two moments so many seconds apart, the first one so long after its first steps."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=take_part, args=(train, theirs))
    spent, marks, began = dict[psutil.Process, float](), list[Mark](), 0.0  # CPU time, also of processes that ended
    process.start()
    theirs.close()
    while len(marks) < 2:
        spent |= cpu_of_descendants(os.getpid())
        if not ours.poll(LOOK_S):
            continue
        mark = time.monotonic(), sum(spent.values()), *ours.recv()  # raises EOFError if the side failed
        began = began or (mark[0] if mark[3] else 0.0)
        wait = seconds if marks else warm_s
        if began and mark[0] - (marks[0][0] if marks else began) >= wait:
            marks.append(mark)
        ours.send(len(marks) < 2)
    process.join()
    figures = between(*marks)
    say(str(figures))
    return figures


def measure_all(options: argparse.Namespace) -> dict[tuple[str, str], list[dict[str, float]]]:
    """By peer and side, the figures of each round; marlcore has each peer's batches."""
    shape = {"hidden": options.hidden, "copies": options.copies, "vectorized": options.vectorized}
    works = {"APPO": Work(512, 512, **shape), "IMPALA": Work(512, 512, **shape), "PPO": Work(4000, 500, **shape)}
    runs: dict[tuple[str, str], Any] = {}
    for peer, work in works.items():
        runs[peer, "marlcore"] = partial(measure, partial(train_ours, work), WARM_S, SECONDS)
        if not rllib.missing():
            runs[peer, "RLlib"] = partial(measure, partial(rllib.train, peer, work), WARM_S, SECONDS)
    return in_turns(runs, ROUNDS)


def medians(found: dict[tuple[str, str], list[dict[str, float]]]) -> list[dict[str, Any]]:
    """A row a side; `times` is the ratio of the medians of steps per CPU-second."""
    middle, rows = {side: {name: median(each[name] for each in of) for name in of[0]} for side, of in found.items()}, []
    for (peer, side), figures in middle.items():
        other = middle.get((peer, "RLlib")) if side == "marlcore" else None
        times = figures["sampled_per_cpu_s"] / other["sampled_per_cpu_s"] if other else None
        rows.append({"side": side, "settings of": peer, **figures, "times": times, "asked": other and GOALS.get(peer)})
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--hidden", type=int, default=Work.hidden, help="units in each of two layers")
    parser.add_argument("--copies", type=int, default=Work.copies, help="of the environment, of each actor")
    parser.add_argument("--vectorized", action="store_true", help="step an actor's copies by one call")
    add_output(parser, idle=True)


def main(options: argparse.Namespace) -> None:
    if rllib.missing():
        say(f"skipped: {rllib.missing()}")
    torch.set_num_threads(1)  # as on all sides
    found = measure_all(options)
    publish(options, records(medians(found)), figures={f"{side}, {peer}": each for (peer, side), each in found.items()})
