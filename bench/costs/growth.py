"""How costs grow: `python -m bench growth`.

Calls by numbers of lanes and of rows, in CPU time; runs that only act, by numbers of environment copies and of
agents: steps in a second of the actor's CPU time, and the CPU time of all processes until the first step.
`--store` renews the figures and the picture of docs/. `--agents` measures runs of up to 1,000 agents instead.
"""

import argparse
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from processes import until
from rich.console import Console

import marlcore as mc
from marlcore.envs import TreasureHunt
from marlcore.transitions import Writer

from ..core.report import ROUND_S, ROUNDS
from ..core.sampling import drawing, drawing_by_priority
from ..core.transitions import BATCH, VECTOR, filled_replay
from ..core.work import FULL, Row, Scale, Work, time_row
from ..figures import FOLDER, picture
from ..machine import publish
from ..pages.pages import growth_tables
from ..processes import cpu_of_descendants
from ..runs.training import endless

STORE = "renew docs/figures/growth.json and docs/growth.png, or growth-agents.json"
COPIES = (1, 4, 16, 64)
AGENTS, MANY_AGENTS = (1, 3, 10, 30, 100), (100, 1000)
POLICIES, LEARNERS, UPDATES_PER_STEP = 20, 4, 0.05
BASE_COPIES, BASE_AGENTS = 4, 3
MEASURED_CPU_S = 3.0  # of the actor
NEW_ROWS = 4096
ACTOR = "actor-0"

Shape = tuple[int, int]  # lanes, and rows in all of them
Open = Callable[[mc.ReplayBuffer, list[Writer]], Work]

SWEEPS: dict[str, dict[str, Shape]] = {
    "lanes, 10^6 rows in all": {f"{lanes}": (lanes, 10**6) for lanes in (1, 4, 16, 64)},
    "rows, 4 lanes": {f"10^{power}": (4, 10**power) for power in (4, 5, 6, 7)},
}


def _add(replay: mc.ReplayBuffer, writers: list[Writer]) -> Work:
    """The writers by turns: with many lanes each one's memory has left the cache."""
    adds = cycle([partial(writer.add, VECTOR, 1, 0.5) for writer in writers])

    def check(_: object) -> None:
        assert len(replay) == replay.capacity

    return Work(lambda: next(adds)(), check)


def _catch_up(replay: mc.ReplayBuffer, writers: list[Writer]) -> Work:
    """A prioritized sampler takes in the rows that were written since; besides, `can_sample` draws one row."""
    sampler = replay.sampler(BATCH, seed=0, prioritized=mc.Prioritized())
    count = NEW_ROWS // len(writers)
    rows = {"obs": np.tile(VECTOR, (count, 1)), "action": np.ones(count, np.int64), "reward": np.zeros(count)}

    def write() -> None:
        for writer in writers:
            writer.add_batch(**rows)

    def check(able: bool) -> None:
        assert able

    return Work(sampler.can_sample, check, prepare=write)


# Each kind of work, and how many times a run does it
WORKS: dict[str, tuple[Open, int]] = {
    "add": (_add, 1),
    "sample 256": (lambda replay, _: drawing(replay, VECTOR), 1),
    "prioritized sample + update of 256": (lambda replay, _: drawing_by_priority(replay), 1),
    "catch up with a new row": (_catch_up, NEW_ROWS),
}


@contextmanager
def _opened(_: Scale, shape: Shape, open_work: Open) -> Iterator[Work]:
    lanes, rows = shape
    with filled_replay(VECTOR, rows, lanes) as replay:
        yield open_work(replay, [replay.writer(lane) for lane in range(lanes)])


def measure(shapes: dict[str, Shape], rounds: int, round_s: float) -> dict[str, dict[str, float]]:
    """Median seconds by kind of work and shape; a row's "libraries" are the shapes, which take turns."""
    figures = {}
    for name, (open_work, times) in WORKS.items():
        opened = {label: partial(_opened, shape=shape, open_work=open_work) for label, shape in shapes.items()}
        seconds = time_row(Row(name, opened), FULL, rounds, round_s)
        figures[name] = {label: median(of_shape) / times for label, of_shape in seconds.items()}
    return figures


def measure_run(
    copies: int, agents: int, policies: int = 0, learners: int | None = None, updates_per_step: float | None = None
) -> dict[str, float]:
    """By default each agent has a policy and a learner of its own, and nothing is learnt; shared pages count once."""
    side = max(11, round(4 * agents**0.5))
    # More than the actor writes while it is measured
    rows = (300_000 + 60_000 * copies) // (policies or agents) // copies * copies
    config = mc.Config(
        updates_per_step=updates_per_step,
        policies={f"agent_{i}": f"policy_{i % policies}" for i in range(agents)} if policies else None,
        actor=mc.ActorConfig(envs=copies),
        replay=mc.ReplayConfig(capacity=rows),
        learner=mc.LearnerConfig(warmup=rows if updates_per_step is None else 100, device="cpu", processes=learners),
    )
    cpu_s, began = _cpu_of_all(), time.monotonic()
    with endless(partial(TreasureHunt, agents=agents, size=side), "dqn", config) as run:
        until(lambda: run.status().steps > 0)
        figures = {"start_s": time.monotonic() - began, "start_cpu_s": _cpu_of_all() - cpu_s}
        until(lambda: cpu_of_descendants(ACTOR) > 1.0)  # its kernels are compiled, its memory is touched
        first = run.status().steps, cpu_of_descendants(ACTOR), _cpu_of_all()
        until(lambda: cpu_of_descendants(ACTOR) > first[1] + MEASURED_CPU_S)
        last = run.status().steps, cpu_of_descendants(ACTOR), _cpu_of_all()
        steps, of_actor, of_all = np.subtract(last, first).tolist()
        processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return {
            **figures,
            "steps_per_cpu_s": steps / of_actor,
            "memory_mb": sum(process.memory_full_info().pss for process in processes) / 2**20,
            "processes": len(processes),
            "segments": sum(each.path.startswith("/dev/shm/") for each in processes[0].memory_maps()),
            "descriptors": max(process.num_fds() for process in processes),
            "steps_per_cpu_s_of_all": steps / of_all,
        }


def _cpu_of_all() -> float:
    return time.process_time() + cpu_of_descendants()


def runs(many_agents: bool) -> dict[str, dict[str, dict[str, float]]]:
    """How many agents there may be in few processes; or how runs grow with copies and with agents."""
    if not many_agents:
        return {
            f"copies, {BASE_AGENTS} agents": {f"{n}": measure_run(n, BASE_AGENTS) for n in COPIES},
            f"agents, {BASE_COPIES} copies": {f"{n}": measure_run(BASE_COPIES, n) for n in AGENTS},
        }
    measured = partial(measure_run, BASE_COPIES, learners=LEARNERS)
    learning = measured(100, policies=POLICIES, updates_per_step=UPDATES_PER_STEP)
    return {
        f"agents, {POLICIES} policies": {f"{n}": measured(n, policies=POLICIES) for n in MANY_AGENTS},
        "agents, a policy each": {f"{n}": measured(n) for n in MANY_AGENTS},
        f"agents, {POLICIES} policies that make {UPDATES_PER_STEP:g} updates for each step": {"100": learning},
    }


def draw(path: Path, figures: Mapping[str, Any]) -> None:
    """A panel a sweep: calls as multiples of the first size, runs' rates and memory."""
    with picture(path, 2, 2, figsize=(10, 7)) as (_, panels):
        *calls, rates, memory = panels
        for (name, works), panel in zip(figures["seconds"].items(), calls, strict=True):
            for work, seconds in works.items():
                values = [*seconds.values()]
                panel.plot([*seconds], [value / values[0] for value in values], "o-", label=work)
            panel.set(xlabel=name, ylabel="CPU time / that of the first", ylim=(0, None))
        (copies, by_copies), (agents, by_agents) = figures["runs"].items()
        rates.plot([*by_copies], [run["steps_per_cpu_s"] for run in by_copies.values()], "o-", color="#0b6e4f")
        rates.set(xlabel=copies, ylabel="steps in a second of the actor's CPU time", ylim=(0, None))
        held, starts = zip(*((run["memory_mb"], run["start_cpu_s"] * 100) for run in by_agents.values()), strict=True)
        memory.plot([*by_agents], held, "o-", label="memory of all processes, MB")
        memory.plot([*by_agents], starts, "o-", label="CPU time of the start, hundredths of a second")
        memory.set(xlabel=agents, ylim=(0, None))
        for panel in (*calls, memory):
            panel.legend(frameon=False, fontsize=8)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: noisier figures")
    parser.add_argument("--agents", action="store_true", help="measure only runs of many agents in few processes")


def main(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    logging.getLogger("marlcore").setLevel(logging.ERROR)  # who acts alone learns nothing, as it would warn
    with Console().status("measuring"):
        effort = (15, 0.003) if options.quick else (ROUNDS, ROUND_S)
        calls = {} if options.agents else {name: measure(shapes, *effort) for name, shapes in SWEEPS.items()}
        figures = {"seconds": calls, "runs": runs(options.agents)}
    publish(options, growth_tables(figures), "growth-agents" if options.agents else "growth", **figures)
    if options.store and not options.agents:
        draw(FOLDER.parent / "growth.png", figures)
