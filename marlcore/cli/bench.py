"""`marlcore bench`: measures the core's calls on this machine, each beside a bound that no library can beat."""

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from statistics import median
from timeit import repeat, timeit
from typing import Any

import numpy as np

from ..interfaces import ReplaySource
from ..notices import say
from ..replay import Prioritized, ReplayBuffer
from ..run import compile_before_a_run
from ..spec import Field, TransitionSpec
from ..tables import FittedTable, print_fitted
from ..weights import ParameterStore
from .options import CommandLine

ROUNDS, ROUND_S = 61, 0.002  # a round is shorter than a scheduler's slice, so that most run undisturbed
BATCH, STACK = 256, 4
VECTORS, FRAMES = 200_000, 10_000
VECTOR, FRAME = Field((4,)), Field((84, 84), "uint8")
RECORD = 48  # bytes of a row of a replay whose observations are VECTORs
FOOTER = """\
ratio: us / bound us. The bound is the memory copy alone, without checks and
without the hand-over to other processes: except for noise, no library gets
below 1. Checks and hand-over cost as much for few bytes as for many, so small
calls have large ratios; compare them by us."""

Call = Callable[[], Any]
Row = dict[str, Any]  # a call's name, its median in us, its bound in words, the bound's median in us, and their ratio


@dataclass(frozen=True)
class BenchOptions:
    """Measure the core's calls on this machine, each beside a bound with the same bytes.

    The figures are medians of rounds in which a call and its bound alternate, so that other load affects both. For
    adding, pulling and publishing, the bound is a copy of the bytes. For sampling, the bound is a copy of rows at
    random places, which costs cache misses rather than bytes. The ratio is the call's time divided by its bound's. The
    command takes under half a minute.
    """

    json: bool = False
    """Print one JSON object instead of a table."""


def main(arguments: list[str]) -> int:
    options = CommandLine("bench", arguments).parse(BenchOptions)
    compile_before_a_run(ReplaySource(), ReplaySource(prioritized=Prioritized()))
    load = os.getloadavg()[0]
    measured = [*_of_vectors(), *_of_frames(), *_of_weights()]
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor, cpus = next(iter(names), platform.machine()), len(os.sched_getaffinity(0))
    if options.json:
        machine = {"processor": processor, "cpus": cpus, "load": load, "python": platform.python_version()}
        sys.stdout.write(json.dumps({**machine, "rows": measured}) + "\n")
        return 0
    headline = [processor, f"{cpus} CPUs", f"load {load:.1f}"]
    titles = ["us", "bound us", "ratio", "bound is"]
    table = {
        row["name"]: [f"{row['us']:,.2f}", f"{row['bound_us']:,.2f}", f"{row['ratio']:.2f}", row["bound"]]
        for row in measured
    }
    print_fitted(FittedTable(headline, "call", titles, table))
    sys.stdout.write(f"{FOOTER}\n")
    if load > 0.5 * cpus:
        say(f"the machine was busy, with a load of {load:.1f} at the start: the times are too long")
    return 0


def _measured(name: str, call: Call, bound: str, bound_call: Call) -> Row:
    """Returns the median times of a call and of its bound, measured in alternate rounds."""
    calls, counts = (call, bound_call), []
    for timed in calls:
        timeit(timed, number=16)
        counts.append(max(1, int(4 * ROUND_S / min(repeat(timed, number=4)))))
    times: tuple[list[float], list[float]] = [], []
    for _ in range(ROUNDS):
        for timed, count, seconds in zip(calls, counts, times, strict=True):
            seconds.append(timeit(timed, number=count) / count)
    us, bound_us = (1e6 * median(seconds) for seconds in times)
    return {"name": name, "us": us, "bound": bound, "bound_us": bound_us, "ratio": us / bound_us}


def _of_vectors() -> Iterator[Row]:
    obs, many, nothing = np.ones(4, np.float32), np.ones((BATCH, 4), np.float32), np.zeros(BATCH, np.float32)
    actions = np.zeros(BATCH, np.int64)
    with ReplayBuffer.create(TransitionSpec(VECTOR, Field((), "int64")), VECTORS) as replay:
        with replay.writer() as writer:
            row_copy, batch_copy = _copies(RECORD), _copies(BATCH * RECORD)
            add_batch = partial(writer.add_batch, many, actions, nothing)
            yield _measured("add", partial(writer.add, obs, 0, 1.0), "a copy of its bytes", row_copy)
            yield _measured(f"add_batch of {BATCH}", add_batch, "a copy of its bytes", batch_copy)
            for _ in range(VECTORS // BATCH):
                add_batch()
        draws = _random_rows(VECTORS, RECORD, 1)
        uniform, prioritized = replay.sampler(BATCH), replay.sampler(BATCH, prioritized=Prioritized())
        yield _measured(f"sample {BATCH} of {VECTORS:,}", uniform.sample, "copies of its rows", draws)
        yield _measured("the same, by priority", prioritized.sample, "copies of its rows", draws)
        index, priority = prioritized.sample().index, np.ones(BATCH)
        update = partial(prioritized.update_priorities, index, priority)
        yield _measured(f"update {BATCH} priorities", update, "copies of its rows", draws)


def _of_frames() -> Iterator[Row]:
    frame = np.ones(FRAME.shape, np.uint8)
    with ReplayBuffer.create(TransitionSpec(FRAME, Field((), "int64")), FRAMES) as replay:
        with replay.writer() as writer:
            for _ in range(FRAMES):
                writer.add(frame, 0, 1.0)
        bound = _random_rows(FRAMES, frame.nbytes, STACK + 1)
        yield _measured(
            f"sample {BATCH}, {STACK} frames", replay.sampler(BATCH, stack=STACK).sample, "copies of its rows", bound
        )


def _of_weights() -> Iterator[Row]:
    import torch
    from torch import nn

    torch.set_num_threads(1)  # as in an actor, which has one core

    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4))

    model, local = make(), make()
    nbytes = sum(tensor.nbytes for tensor in model.state_dict().values())
    copy = _copies(nbytes)
    with ParameterStore.create(model) as store:
        publish, pull = store.publisher(model).publish, store.subscriber(local).pull
        yield _measured(f"publish {nbytes / 1e6:.2f} MB", publish, "a copy of its bytes", copy)
        yield _measured("publish and pull", lambda: (publish(), pull()), "two copies", lambda: (copy(), copy()))


def _copies(nbytes: int) -> Call:
    to, source = np.zeros(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    to_memory, source_memory = to.data, source.data

    def copy() -> None:
        to_memory[:] = source_memory

    return copy


def _random_rows(rows: int, nbytes: int, neighbours: int) -> Call:
    """Returns a function that copies BATCH groups of `neighbours` adjacent rows from random places."""
    ring = np.ones((rows, nbytes), np.uint8)
    starts = np.random.default_rng(0).integers(rows - neighbours, size=(64, BATCH, 1))
    places = cycle((starts + np.arange(neighbours)).reshape(64, -1))
    out = np.empty((BATCH * neighbours, nbytes), np.uint8)
    return lambda: np.take(ring, next(places), axis=0, out=out, mode="clip")
