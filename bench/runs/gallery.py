"""Curves of the gallery: `python -m bench gallery dqn_async` runs an example for each seed, and draws its returns.

Such an example has `Args`, with a `seed`, and `main(args)`, which returns each episode's step and return. Further
options are the example's.
"""

import argparse
import importlib
import time
from statistics import fmean

import tyro

from marlcore.processes import Metric
from marlcore.record.curves import plot_runs

from ..figures import FOLDER, load, use_fewer_colours, write
from ..machine import cpu_seconds, made, say

STORE = "keep the figures in docs/figures/gallery.json"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("example", help="such as dqn_async")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.set_defaults(rest=[])


def main(options: argparse.Namespace) -> None:
    example = importlib.import_module(options.example)
    curves, figures = [], {}
    for seed in options.seeds:
        began, used = time.monotonic(), cpu_seconds()
        episodes = example.main(tyro.cli(example.Args, args=[*options.rest, f"--seed={seed}"]))
        seconds, cpu = time.monotonic() - began, cpu_seconds() - used
        late = fmean(value for step, value in episodes if step > 0.9 * episodes[-1][0])
        say(f"seed {seed}: {late:.1f} in the last tenth; {seconds:.0f} s, CPU {cpu:.0f} s")
        figures[str(seed)] = [late, seconds, cpu]
        curves.append([Metric(0.0, step, "return", "episode_return", value) for step, value in episodes])
        picture = FOLDER.parent / "gallery" / f"{options.example}.png"
        plot_runs(curves, picture, f"examples/{options.example}.py, seeds {options.seeds[: len(curves)]}")
        use_fewer_colours(picture)
    if options.store:
        record = {"seeds": figures, **made(options.load_before)}
        write(FOLDER / "gallery.json", {**load("gallery"), options.example: record})
