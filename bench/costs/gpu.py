"""On a CUDA device: `python -m bench gpu`. Weights and batches beside plain copies of their bytes, and whole runs.

Copies are timed by the clock, until the device has finished. A run is watched for a few seconds after its first
updates; the driver says how busy the device is. `--store` keeps the figures of a card.
"""

import argparse
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import pynvml
import torch
from processes import until
from torch import nn

import marlcore as mc
from marlcore.envs import TreasureHunt

from ..core import sampling
from ..core.report import measure
from ..core.transitions import BATCH, FRAME, STACK, check_draw, fields_of, filled_replay
from ..core.weights import by_locks, by_marlcore, finished, large
from ..core.work import Open, Row, Scale, Work
from ..figures import file_name
from ..machine import publish, say, system
from ..pages.pages import gpu_tables
from ..processes import run_fresh
from ..runs.training import endless

STORE = "keep the figures as this card's, in docs/figures"
DEVICE = "cuda:0"
ROUNDS, ROUND_S = 9, {True: 0.2, False: 0.02}  # longer with batches: some are ready when a round begins
WATCHED_S, LOOK_S = 4.0, 0.1
LEARNER = mc.LearnerConfig(device=DEVICE, batch_size=256, prefetch=2, warmup=2_000)
VECTORS = replace(LEARNER, batch_size=1024, warmup=5_000)


def _copy(size: int, to_device: bool) -> Work:
    """The bytes over PCIe in one piece, from pinned memory or to it: the bound that nothing can beat."""
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    device = torch.ones(size, dtype=torch.uint8, device=DEVICE)
    to, source = (device, host) if to_device else (host, device)

    def check(_: object) -> None:
        assert torch.equal(device.cpu(), host)

    return Work(lambda: finished(lambda: to.copy_(source, non_blocking=True)), check)


def _check_batch(fields: tuple[Any, ...]) -> None:
    check_draw(FRAME, tuple(np.asarray(torch.as_tensor(field).cpu()) for field in fields))


@contextmanager
def _prefetched(scale: Scale) -> Iterator[Work]:
    with filled_replay(FRAME, scale.frames) as replay:
        sampler = replay.sampler(BATCH, stack=STACK, seed=0)
        with mc.Prefetch(sampler, depth=2, device=DEVICE) as batches:
            yield Work(lambda: finished(lambda: fields_of(batches.sample())), _check_batch)


@contextmanager
def _drawn_and_moved(scale: Scale) -> Iterator[Work]:
    """The work without Prefetch: draws, then copies each array to the device."""
    move = partial(torch.as_tensor, device=DEVICE)
    with sampling.by_marlcore(scale, FRAME) as drawn:
        yield Work(lambda: finished(lambda: tuple(map(move, drawn.run()))), _check_batch)


WEIGHTS: dict[str, Open] = {
    "marlcore": partial(by_marlcore, device=DEVICE),
    "locks": partial(by_locks, device=DEVICE),
    "PCIe": lambda _, make, pulling: _copy(sum(each.nbytes for each in make().state_dict().values()), pulling),
}
BATCHES: dict[str, Open] = {
    "marlcore": _prefetched,
    "in turn": _drawn_and_moved,
    "CPU only": partial(sampling.by_marlcore, obs=FRAME),
    "PCIe": lambda _: _copy(BATCH * (STACK + 1) * FRAME.nbytes, True),
}
ROWS = (
    *(
        Row(f"{verb} {size} MB", WEIGHTS, {}, (model, verb == "pull"), time.perf_counter)
        for verb in ("publish", "pull")
        for size, model in (("6.8", large), ("50", lambda: nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(3)))))
    ),
    Row("batch of 256, 4 frames of 84 x 84", BATCHES, clock=time.perf_counter),
)


def watch(env: Any, algorithm: Any, config: mc.Config) -> dict[str, float]:
    """Watches a run without a set ratio from a second after its learners' first updates; memory is of all processes."""
    card = pynvml.nvmlDeviceGetHandleByIndex(0)
    before = pynvml.nvmlDeviceGetMemoryInfo(card).used
    with endless(env, algorithm, replace(config, updates_per_step=None)) as run:
        until(lambda: min(run.status().updates.values(), default=0) >= 20)
        time.sleep(1.0)
        first, began, busy = run.status(), time.monotonic(), []
        while time.monotonic() < began + WATCHED_S:
            time.sleep(LOOK_S)
            busy.append(pynvml.nvmlDeviceGetUtilizationRates(card).gpu)
        last, seconds = run.status(), time.monotonic() - began
        memory = pynvml.nvmlDeviceGetMemoryInfo(card).used - before
    made = sum(last.updates.values()) - sum(first.updates.values())
    rates = {"steps_per_s": (last.steps - first.steps) / seconds, "updates_per_s": made / seconds}
    found = {**rates, "busy_percent": fmean(busy), "gpu_mb": memory / 1e6}
    say(f"{type(algorithm).__name__}: {found}")
    return found


def play(size: int, mode: Any = "off") -> dict[str, float]:
    """TD3 of two layers and batches of one size, in a game of two players as hockey's."""
    config = mc.Config(learner=replace(VECTORS, batch_size=size, compile=mode))
    env_fn = mc.NamedEnvironment("examples.puck:two_player_puck", {"discrete": False})
    return watch(env_fn, mc.TD3(hidden=(size, size)), config)


def watch_runs() -> dict[str, dict[str, dict[str, float]]]:
    """Figures of runs, by table and row."""
    pong, dqn, wide = "atari:Pong", mc.DQN(hidden=(512,)), mc.DQN(hidden=(1024, 1024))
    pixels = mc.Config(actor=mc.ActorConfig(envs=8), replay=mc.ReplayConfig(capacity=50_000), learner=LEARNER)
    hunting = replace(pixels, replay=mc.ReplayConfig(capacity=100_000), learner=VECTORS)
    on = {
        "CPU, 1 thread": replace(LEARNER, device="cpu"),
        "CPU, 8 threads": replace(LEARNER, device="cpu", threads=8),
        "GPU, without prefetch": replace(LEARNER, prefetch=0),
        "GPU": LEARNER,
        "GPU, reduce-overhead": replace(LEARNER, compile="reduce-overhead"),
        "GPU, reduce-overhead, without prefetch": replace(LEARNER, compile="reduce-overhead", prefetch=0),
    }
    acting = {f"{n} processes": mc.ActorConfig(processes=n, envs=8) for n in (1, 2, 4, 8, 16)} | {
        "actors on the CPU, 32 copies": mc.ActorConfig(envs=32),
        "actors on the GPU, 32 copies": mc.ActorConfig(envs=32, device=(DEVICE,)),
    }
    return {
        "DQN on Pong, batches of 256, by the learner's device": {
            name: watch(pong, dqn, replace(pixels, learner=settings)) for name, settings in on.items()
        },
        "the same, by actors": {name: watch(pong, dqn, replace(pixels, actor=actor)) for name, actor in acting.items()},
        "learner processes on one GPU, DQN of 1024 x 1024, batches of 1024": {
            f"{n}": watch(partial(TreasureHunt, agents=n, size=20), wide, hunting) for n in (1, 4, 8)
        },
        "TD3 of two players": {
            f"{n} x {n}, batches of {n}, compile {mode}": play(n, mode)
            for n, mode in ((256, "off"), (256, "reduce-overhead"), (1024, "off"), (1024, "reduce-overhead"))
        },
    }


def main(options: argparse.Namespace) -> None:
    pynvml.nvmlInit()
    card = pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(0))
    calls = run_fresh(_measure_calls)  # this process forks workers, and must not open the device
    figures = {"microseconds": calls, "runs": watch_runs()}
    publish(options, gpu_tables(figures), file_name("gpu", card), machine=f"{card}; {system()}", **figures)


def _measure_calls() -> dict[str, dict[str, float]]:
    logging.basicConfig(level=logging.INFO)  # marlcore says so if CUDA refuses to register memory
    return {row.name: measure(row, ROUNDS, ROUND_S[row.libraries is BATCHES])["microseconds"] for row in ROWS}
