"""`python -m bench teams`: BenchMARL on MPE, at as many steps of the environment as the zoo's presets, for docs/zoo.md.

Stored runs are skipped, so an interrupted sweep goes on; `python -m bench zoo --page` writes the table.
"""

import argparse
import json
from itertools import product

from .. import ROOT
from ..figures import write
from ..machine import processor, say
from ..peers.install import BENCHMARL
from .page import OF_BENCHMARL, TEAM_STEPS, TEAM_TASKS
from .zoo import BENCHMARL as FIGURES
from .zoo import read_figures

PROGRAM = ROOT / "bench" / "zoo" / "benchmarl_mpe.py"
RATES = (5e-5, 3e-4, 1e-3)  # the first is BenchMARL's own


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", choices=TEAM_TASKS, default=TEAM_TASKS)
    parser.add_argument("--algorithms", nargs="+", choices=[*OF_BENCHMARL], default=[*OF_BENCHMARL])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="+", type=float, default=RATES, help="learning rates")


def main(options: argparse.Namespace) -> None:
    for seed, task, algorithm, rate in product(options.seeds, options.tasks, options.algorithms, options.rates):
        name = f"{task} {algorithm} {rate:g}"
        if str(seed) in read_figures(FIGURES).get("runs", {}).get(name, {}):
            continue
        settings = TEAM_STEPS, seed, json.dumps({"lr": rate})
        found = BENCHMARL.run("-I", PROGRAM, task.replace("-", "_"), algorithm, *settings) | {"on": processor()}
        say(f"{name} {seed} {json.dumps(found)}")
        figures = read_figures(FIGURES)
        figures.setdefault("runs", {}).setdefault(name, {})[str(seed)] = found
        write(FIGURES, {**figures, "software": BENCHMARL.packages})
