"""Memory, descriptors and rates of long work, minute by minute, and whether any of them creeps: `python -m bench soak`.

The work is the core's calls, each in a process of its own; or a training run, one of whose actors is killed. After the
warm-up, a process may gain at most MOST_MB_AN_HOUR and no descriptor. Ctrl-C ends the soak, which then reports.
"""

import argparse
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import psutil
import torch
from whole_runs import kill

import marlcore as mc
from marlcore.processes import WorkerContext

from ..core.transitions import BATCH, VECTOR, spec_of
from ..figures import FOLDER
from ..machine import publish
from ..pages.pages import MEASURES, creep_table, draw_soak, rates_table
from ..runs.training import endless

STORE = "renew docs/figures/soak-PROGRAM.json and docs/soak-PROGRAM.png"
EVERY_S = 10.0
WARM_UP = 0.1  # of the time: memory is touched for the first time, kernels are compiled
MOST_MB_AN_HOUR = 4.0
LEAST_MB = 1.0  # of growth is no growth, however short the soak: the kernel counts pages in bundles
CAPACITY = 100_000
EPISODE = 100
REPORT_S = 1.0
KILL_S = 120.0

Counts = Callable[[], Counter[str]]


@dataclass(frozen=True)
class Process:
    pid: int
    rss_mb: float
    anonymous_mb: float  # of it, without pages of files: the kernel takes those back, which hides growth
    descriptors: int


@dataclass(frozen=True)
class Sample:
    seconds: float
    load: float
    processes: dict[str, Process]  # by title and number
    counts: dict[str, int]  # calls until now, by name


def settled(samples: list[Sample]) -> list[Sample]:
    """Samples after the warm-up."""
    begin = samples[0].seconds + WARM_UP * (samples[-1].seconds - samples[0].seconds)
    return [sample for sample in samples if sample.seconds >= begin]


def growth(samples: list[Sample]) -> dict[str, list[float]]:
    """By process that lived after the warm-up: [resident MB, anonymous MB, descriptors], last tenth minus first."""
    grown, samples = {}, settled(samples)
    part = max(1, len(samples) // 10)
    for name, process in samples[0].processes.items():
        lives = [sample.processes.get(name) for sample in samples]
        if all(one and one.pid == process.pid for one in lives):
            columns = ([getattr(one, measure) for one in lives] for measure in MEASURES)
            grown[name] = [float(median(values[-part:]) - median(values[:part])) for values in columns]
    return grown


def creeping(samples: list[Sample]) -> list[str]:
    """A line for each process whose memory or descriptors grew by more than they may."""
    hours = (samples[-1].seconds - settled(samples)[0].seconds) / 3600
    most_mb, lines = max(LEAST_MB, MOST_MB_AN_HOUR * hours), []
    for name, (*memory, more) in growth(samples).items():
        for kind, grown in zip(("resident", "anonymous"), memory, strict=True):
            if grown > most_mb:
                lines.append(f"{name}: expected at most {most_mb:.1f} MB more {kind} memory, got {grown:.1f}")
        if more > 0:
            lines.append(f"{name}: expected no further descriptor, got {more:g}")
    return lines


def look() -> dict[str, Process]:
    """This process and its descendants, by title; those of the same title are numbered by their age."""
    found: dict[str, Process] = {}
    numbers: Counter[str] = Counter()
    parent = psutil.Process()
    for each in [parent, *sorted(parent.children(recursive=True), key=psutil.Process.create_time)]:
        with suppress(psutil.Error):  # it has ended, or is ending
            memory, opened = each.memory_info(), each.num_fds()
            name = "parent" if each == parent else each.name()
            numbers[name] += 1
            numbered = f"{name} {numbers[name]}" if numbers[name] > 1 else name
            sizes = memory.rss / 2**20, (memory.rss - memory.shared) / 2**20
            found[numbered] = Process(each.pid, *sizes, opened)
    return found


def take(counts: Counts, seconds: float) -> list[Sample]:
    samples, began, due = [], time.monotonic(), 0.0
    while True:
        passed = time.monotonic() - began
        samples.append(Sample(passed, os.getloadavg()[0], look(), dict(counts())))
        if passed >= seconds:
            return samples
        due += EVERY_S
        try:
            time.sleep(max(0.0, began + due - time.monotonic()))
        except (KeyboardInterrupt, SystemExit):
            seconds = 0.0


def figures_of(samples: list[Sample]) -> dict[str, Any]:
    """A sample a minute, or the first and the last one, as columns; a process that did not live then has None."""
    minutes = samples[:: round(60 / EVERY_S)]
    minutes = minutes if minutes[1:] else [samples[0], samples[-1]]
    seen = Counter(name for sample in minutes for name in sample.processes)
    names = [name for name, times in seen.items() if times > 1]  # others had not yet taken their title
    columns = {
        measure: {name: [getattr(sample.processes.get(name), measure, None) for sample in minutes] for name in names}
        for measure in MEASURES
    }
    return {
        "seconds": [sample.seconds for sample in minutes],
        "load": [sample.load for sample in minutes],
        "counts": {name: [sample.counts.get(name, 0) for sample in minutes] for name in minutes[-1].counts},
        **columns,
        "growth": growth(samples),
    }


def _repeat(context: WorkerContext, name: str, times: int, call: Callable[[], object]) -> None:
    """Repeats the call until the soak ends; reports the count each second, `times` for a call."""
    count, due = 0, 0.0
    while not context.stopping:
        call()
        count += times
        if time.monotonic() >= due:
            context.report(name, count)
            due = time.monotonic() + REPORT_S


def adder(context: WorkerContext, replay: mc.ReplayBuffer, lane: int) -> None:
    with replay.writer(lane) as writer:

        def add_episode() -> None:
            for step in range(EPISODE):
                writer.add(VECTOR, 1, 0.5, step == EPISODE - 1)

        _repeat(context, "adds", EPISODE, add_episode)


def sampler(context: WorkerContext, replay: mc.ReplayBuffer) -> None:
    sampler = replay.sampler(BATCH, n_step=3, prioritized=mc.Prioritized())
    _repeat(context, "samples", 1, partial(sampler.sample, timeout=60.0))


def publisher(context: WorkerContext, store: mc.ParameterStore, model: torch.nn.Module) -> None:
    _repeat(context, "publishes", 1, store.publisher(model).publish)


def subscriber(context: WorkerContext, store: mc.ParameterStore, model: torch.nn.Module) -> None:
    _repeat(context, "pulls", 1, partial(store.subscriber(model).pull, timeout=60.0))


@contextmanager
def core() -> Iterator[Counts]:
    """Two writers and a prioritized sampler of their rows, a publisher and its subscriber, flat out."""
    model = torch.nn.Linear(256, 256)
    with (
        mc.ReplayBuffer.create(spec_of(VECTOR), CAPACITY, lanes=2) as replay,
        mc.ParameterStore.create(model) as store,
        mc.Workers(grace=60.0) as workers,
    ):
        calls = (adder, replay, 0), (adder, replay, 1), (sampler, replay), (publisher, store, model)
        for call, *arguments in (*calls, (subscriber, store, model)):
            workers.start(call, *arguments)
        newest: dict[tuple[str, str], int] = {}

        def counts() -> Counter[str]:
            workers.check()
            newest.update({(report.agent, report.name): int(report.value) for report in workers.reports()})
            return sum((Counter({name: value}) for (_, name), value in newest.items()), Counter())

        yield counts


@contextmanager
def training() -> Iterator[Counts]:
    """A run of the treasure hunt: three DQN learners and two actors, of which one is killed every two minutes."""
    config = mc.Config(
        actor=mc.ActorConfig(processes=2),
        # Replay and rings of reports are full before the warm-up ends, so that all their memory is touched.
        replay=mc.ReplayConfig(capacity=8_000),
        learner=mc.LearnerConfig(device="cpu", log_interval=10),
        supervision=mc.SupervisionConfig(max_restarts=10, window=KILL_S),
    )
    due = time.monotonic() + KILL_S

    def counts() -> Counter[str]:
        nonlocal due
        if run.done:
            run.wait()  # raises what ended it
        if time.monotonic() >= due:
            due += KILL_S
            with suppress(ProcessLookupError):
                kill(run, "actor-1")
        status = run.status()
        restarts = sum(status.restarts.values())
        return Counter(steps=status.steps, updates=sum(status.updates.values()), restarts=restarts)

    with endless("treasure_hunt", "dqn", config) as run:
        yield counts


PROGRAMS = {"core": core, "training": training}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--program", choices=list(PROGRAMS), default="core")


def main(options: argparse.Namespace) -> int:
    with PROGRAMS[options.program]() as counts:
        samples = take(counts, 60.0 * options.minutes)
    minutes = samples[-1].seconds / 60
    options.command = f"nice -n {os.nice(0)} python -m bench soak --program {options.program} --minutes {minutes:.0f}"
    figures, stored = figures_of(samples), f"soak-{options.program}"
    publish(options, f"{rates_table(figures)}\n{creep_table(figures)}", stored, **figures)
    if options.store:
        draw_soak(FOLDER.parent / f"{stored}.png", figures)
    lines = creeping(samples)
    sys.stderr.writelines(f"{line}\n" for line in lines)
    return 1 if lines else 0
