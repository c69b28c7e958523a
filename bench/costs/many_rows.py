"""Draws from up to 10^8 rows beside random copies of the same bytes: `python -m bench many_rows --path FILE`.

Prints microseconds of the clock: the 15th percentile of short turns, which few other programs interrupt. A call's
time at 10^4 rows is what it takes without cache misses; the rest is how it grows. Replays of more than 10^7 rows lie
in FILE, 40 bytes a row, and the memory must hold the file twice.
"""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

import marlcore as mc

from ..core.random_copies import random_copies
from ..core.sampling import STORED, STORED_NBYTES, drawing, drawing_by_priority
from ..core.transitions import BATCH, VECTOR, filled_replay
from ..core.work import Row, Scale, Work, time_row
from ..machine import say

SCALE = Scale(vectors=0, frames=0, warm_runs=300)
IN_MEMORY = 10**7  # rows
ROUNDS, ROUND_S = 100, 0.0005


# In this order: the second one's tree is made by reading all rows, after the first one has taken its memory
KINDS: dict[str, Callable[[mc.ReplayBuffer], Work]] = {
    "random copies": lambda replay: random_copies(replay.capacity, STORED_NBYTES, STORED, BATCH),
    # Unchecked: the check is for fewer rows, beside which a batch has most of the mass
    "prioritized draw and update": lambda replay: replace(drawing_by_priority(replay), check=lambda drawn: None),
    "uniform draw": partial(drawing, obs=VECTOR),
}


def measure(sizes: list[int], path: Path | None) -> dict[str, list[float]]:
    """Microseconds by kind of work, for each size."""
    with ExitStack() as stack:
        filled = (filled_replay(VECTOR, rows, path=path if rows > IN_MEMORY else None) for rows in sizes)
        replays = [stack.enter_context(replay) for replay in filled]
        os.sync()  # after this and a pass over all rows, draws from a file are several times faster; why is not known
        opened = {
            f"{kind}, {rows}": lambda _, open_work=open_work, replay=replay: open_work(replay)
            for kind, open_work in KINDS.items()
            for rows, replay in zip(sizes, replays, strict=True)
        }
        seconds = time_row(Row("draws", opened, clock=time.perf_counter), SCALE, ROUNDS, ROUND_S)
        low = partial(np.percentile, q=15)
        return {kind: [float(low(seconds[f"{kind}, {rows}"])) * 1e6 for rows in sizes] for kind in KINDS}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--path", type=Path, help="a file that does not exist, for replays of more than 10^7 rows")
    parser.add_argument("--powers", type=int, nargs="+", default=[4, 6, 7, 8], help="rows, as ascending powers of ten")


def main(options: argparse.Namespace) -> None:
    figures = measure([10**power for power in options.powers], options.path)
    floor = figures["random copies"]
    sizes = ", ".join(f"10^{power}" for power in options.powers)
    say(f"{BATCH} rows of {STORED_NBYTES} bytes, of {sizes} rows")
    for kind, times in figures.items():
        growth = ((us - times[0]) / (of_floor - floor[0]) for us, of_floor in zip(times[1:], floor[1:], strict=True))
        ratios = f"; growth: {', '.join(f'{ratio:.2f}' for ratio in growth)} times that of random copies"
        say(f"{kind}: {', '.join(f'{us:.1f}' for us in times)} us{'' if times is floor else ratios}")
