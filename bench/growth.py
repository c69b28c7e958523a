"""How the cost of a call grows with lanes and with rows, 4 x float32 each: `python -m bench.growth`."""

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import marlcore as mc
from marlcore.transitions import Writer

from .machine import describe_machine, publish
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


def growth_table(name: str, figures: dict[str, dict[str, float]]) -> Table:
    title = f"median time in microseconds, and as a multiple of the first: {name}"
    table = table_of(title, "work", *next(iter(figures.values())), show_edge=False)
    for work, seconds in figures.items():
        first = next(iter(seconds.values()))
        table.add_row(work, *(f"{s * 1e6:.3g} {f'x {s / first:.2g}':>7}" for s in seconds.values()))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__.partition(":")[0] + ".")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: noisier figures")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args()
    torch.set_num_threads(1)
    machine = describe_machine()
    with Console().status("measuring"):
        figures = {name: measure(shapes, QUICK if options.quick else THOROUGH) for name, shapes in SWEEPS.items()}
    publish(machine, (growth_table(*sweep) for sweep in figures.items()), 120, options.json, seconds=figures)


if __name__ == "__main__":
    main()
