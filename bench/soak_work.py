"""What a soak runs: the core's calls, each in a process of its own; or a training run, one of whose actors is killed.

Each yields a function that returns how often each call was made so far, by its name.
"""

import os
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

import marlcore as mc
from marlcore.processes import WorkerContext

from .cpu_time import cpu_of_descendants, title
from .transitions import BATCH, VECTOR, spec_of

CAPACITY = 100_000
EPISODE = 100
REPORT_S = 1.0
KILL_S = 120.0

Counts = Callable[[], Counter[str]]


def _repeat(context: WorkerContext, name: str, times: int, call: Callable[[], object]) -> None:
    """Calls it until the soak ends, and reports every second how often; a call does it `times` times."""
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
            for _ in range(EPISODE - 1):
                writer.add(VECTOR, 1, 0.5)
            writer.add(VECTOR, 1, 0.5, True)

        _repeat(context, "adds", EPISODE, add_episode)


def sampler(context: WorkerContext, replay: mc.ReplayBuffer) -> None:
    sample = replay.sampler(BATCH, n_step=3, prioritized=mc.Prioritized()).sample
    _repeat(context, "samples", 1, partial(sample, timeout=60.0))


def publisher(context: WorkerContext, store: mc.ParameterStore, model: torch.nn.Module) -> None:
    _repeat(context, "publishes", 1, store.publisher(model).publish)


def subscriber(context: WorkerContext, store: mc.ParameterStore, model: torch.nn.Module) -> None:
    pull = store.subscriber(model).pull
    _repeat(context, "pulls", 1, partial(pull, timeout=60.0))


@contextmanager
def core() -> Iterator[Counts]:
    """Two writers and a prioritized sampler of their rows, a publisher and its subscriber, flat out."""
    model = torch.nn.Linear(256, 256)
    with (
        mc.ReplayBuffer.create(spec_of(VECTOR), CAPACITY, lanes=2) as replay,
        mc.ParameterStore.create(model) as store,
        mc.Workers(grace=60.0) as workers,
    ):
        for lane in range(2):
            workers.start(adder, replay, lane)
        workers.start(sampler, replay)
        workers.start(publisher, store, model)
        workers.start(subscriber, store, model)
        newest: dict[tuple[str, str], float] = {}

        def counts() -> Counter[str]:
            workers.check()
            newest.update({(report.agent, report.name): report.value for report in workers.reports()})
            total: Counter[str] = Counter()
            for (_, name), value in newest.items():
                total[name] += int(value)
            return total

        yield counts


@contextmanager
def training() -> Iterator[Counts]:
    """A run of the treasure hunt: three DQN learners and two actors, of which one is killed every two minutes."""
    with tempfile.TemporaryDirectory() as folder:
        config = mc.Config(
            total_steps=10**9,
            run_dir=str(Path(folder) / "run"),
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
            victims = [pid for pid, _ in cpu_of_descendants(os.getpid()) if title(pid) == "actor-1"]
            if victims and time.monotonic() >= due:
                due += KILL_S
                os.kill(victims[0], signal.SIGKILL)
            status = run.status()
            restarts = sum(status.restarts.values())
            return Counter(steps=status.steps, updates=sum(status.updates.values()), restarts=restarts)

        with mc.start("treasure_hunt", "dqn", config) as run:
            yield counts


PROGRAMS = {"core": core, "training": training}
