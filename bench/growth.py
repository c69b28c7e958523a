"""How costs grow: `python -m bench.growth`.

Calls with lanes and with rows, 4 x float32 each, in CPU time; runs with copies of the environment and with agents.
`--store` renews the figures and the picture of docs/. `--agents` measures runs of up to 1,000 agents instead.
"""

import argparse
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import marlcore as mc
from marlcore.transitions import Writer

from . import growth_runs
from .figures import FOLDER
from .machine import describe_machine, load_since, publish
from .report import QUICK, THOROUGH, Effort, table_of
from .transitions import BATCH, VECTOR, check_sample, fields_of, fill, spec_of
from .work import FULL, Row, Scale, Work, time_row

NEW_ROWS = 4096

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


def _sample(replay: mc.ReplayBuffer, _: list[Writer]) -> Work:
    sampler, check = replay.sampler(BATCH, seed=0), check_sample(VECTOR)
    return Work(sampler.sample, lambda batch: check(fields_of(batch)))


def _sample_prioritized(replay: mc.ReplayBuffer, _: list[Writer]) -> Work:
    sampler, check = replay.sampler(BATCH, seed=0, prioritized=mc.Prioritized()), check_sample(VECTOR)
    priorities = np.random.default_rng(0).random(BATCH)

    def run() -> mc.Batch:
        batch = sampler.sample()
        sampler.update_priorities(batch.index, priorities)
        return batch

    return Work(run, lambda batch: check(fields_of(batch)))


def _catch_up(replay: mc.ReplayBuffer, writers: list[Writer]) -> Work:
    """A prioritized sampler looks at what was written since; drawing one row is what else `can_sample` does."""
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
    "sample 256": (_sample, 1),
    "prioritized sample + update of 256": (_sample_prioritized, 1),
    "catch up with a new row": (_catch_up, NEW_ROWS),
}


@contextmanager
def _opened(_: Scale, shape: Shape, open_work: Open) -> Iterator[Work]:
    lanes, rows = shape
    with mc.ReplayBuffer.create(spec_of(VECTOR), rows, lanes) as replay:
        writers = [replay.writer(lane) for lane in range(lanes)]
        for writer in writers:
            fill(VECTOR, replay.capacity // lanes, writer.add_batch)
        yield open_work(replay, writers)


def measure(shapes: dict[str, Shape], effort: Effort) -> dict[str, dict[str, float]]:
    """Median seconds by kind of work and shape; a row's "libraries" are the shapes, which take turns."""
    figures = {}
    for name, (open_work, times) in WORKS.items():
        opened = {label: partial(_opened, shape=shape, open_work=open_work) for label, shape in shapes.items()}
        seconds = time_row(Row(name, opened), FULL, effort.rounds, effort.round_s)
        figures[name] = {label: median(rounds) / times for label, rounds in seconds.items()}
    return figures


def measure_runs() -> dict[str, dict[str, growth_runs.RunFigures]]:
    """By sweep and size."""
    copies, agents = growth_runs.BASE_COPIES, growth_runs.BASE_AGENTS
    return {
        f"copies, {agents} agents": {f"{n}": growth_runs.measure(n, agents) for n in growth_runs.COPIES},
        f"agents, {copies} copies": {f"{n}": growth_runs.measure(copies, n) for n in growth_runs.AGENTS},
    }


def measure_agents() -> dict[str, dict[str, growth_runs.RunFigures]]:
    """Runs of many agents, by sweep and number of agents."""
    copies, policies, learners = growth_runs.BASE_COPIES, growth_runs.POLICIES, growth_runs.LEARNERS
    measured, pace = partial(growth_runs.measure, copies, learners=learners), growth_runs.UPDATES_PER_STEP
    learning = measured(100, policies=policies, updates_per_step=pace)
    return {
        f"agents, {policies} policies": {f"{n}": measured(n, policies=policies) for n in growth_runs.MANY_AGENTS},
        "agents, a policy each": {f"{n}": measured(n) for n in growth_runs.MANY_AGENTS},
        f"agents, {policies} policies that make {pace:g} updates for each step": {"100": learning},
    }


def growth_table(name: str, figures: dict[str, dict[str, float]]) -> Table:
    title = f"median CPU time in microseconds, and as a multiple of the first: {name}"
    table = table_of(title, "work", *next(iter(figures.values())), show_edge=False)
    for work, seconds in figures.items():
        first = next(iter(seconds.values()))
        table.add_row(work, *(f"{s * 1e6:.3g} {f'x {s / first:.2g}':>7}" for s in seconds.values()))
    return table


def runs_table(name: str, figures: dict[str, growth_runs.RunFigures]) -> Table:
    columns = [field.replace("_", " ") for field in growth_runs.RunFigures.__dataclass_fields__]
    table = table_of(f"a run of treasure_hunt by {name}", "", *columns)
    for size, run in figures.items():
        table.add_row(size, *(f"{value:,.4g}" for value in astuple(run)))
    return table


def draw(path: Path, figures: Mapping[str, Any]) -> None:
    """A panel a sweep: calls as multiples of the first size, runs' rates and memory."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    panels = plt.subplots(2, 2, figsize=(10, 7), layout="constrained")
    axes = iter(panels[1].flat)
    for (name, works), panel in zip(figures["seconds"].items(), axes, strict=False):
        for work, seconds in works.items():
            values = [*seconds.values()]
            panel.plot([*seconds], [value / values[0] for value in values], "o-", label=work)
        panel.set(xlabel=name, ylabel="CPU time / that of the first", ylim=(0, None))
        panel.legend(frameon=False, fontsize=8)
    copies, agents = figures["runs"].items()
    rates, memory = next(axes), next(axes)
    rates.plot([*copies[1]], [size["steps_per_cpu_s"] for size in copies[1].values()], "o-", color="#0b6e4f")
    rates.set(xlabel=copies[0], ylabel="steps in a second of the actor's CPU time", ylim=(0, None))
    for label, name, factor in (
        ("memory of all processes, MB", "memory_mb", 1),
        ("CPU time of the start, hundredths of a second", "start_cpu_s", 100),
    ):
        memory.plot([*agents[1]], [size[name] * factor for size in agents[1].values()], "o-", label=label)
    memory.set(xlabel=agents[0], ylim=(0, None))
    memory.legend(frameon=False, fontsize=8)
    for panel in panels[1].flat:
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].savefig(path, dpi=110)
    plt.close(panels[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: noisier figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--agents", action="store_true", help="measure runs of many agents in few processes alone")
    parser.add_argument(
        "--store", action="store_true", help="renew docs/figures/growth.json and docs/growth.png, or growth-agents.json"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("marlcore").setLevel(logging.ERROR)  # who acts alone learns nothing, as it would warn
    machine, before = describe_machine(), os.getloadavg()[0]
    with Console().status("measuring"):
        effort = QUICK if options.quick else THOROUGH
        calls = {} if options.agents else {name: measure(shapes, effort) for name, shapes in SWEEPS.items()}
        runs = measure_agents() if options.agents else measure_runs()
    tables = [growth_table(*sweep) for sweep in calls.items()] + [runs_table(*sweep) for sweep in runs.items()]
    plain = {name: {size: asdict(figures) for size, figures in sweep.items()} for name, sweep in runs.items()}
    figures, name = {"seconds": calls, "runs": plain}, "growth-agents" if options.agents else "growth"
    publish(
        machine, tables, 0, options.json, FOLDER / f"{name}.json" if options.store else None,
        command="python -m bench.growth" + " --quick" * options.quick + " --agents" * options.agents,
        load=load_since(before), **figures,
    )  # fmt: skip
    if options.store and not options.agents:
        draw(FOLDER.parent / "growth.png", figures)


if __name__ == "__main__":
    main()
