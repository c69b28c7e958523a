"""`python -m bench teams`: BenchMARL on MPE, at as many steps of the environment as the zoo's presets, for docs/zoo.md.

Each run, and the time of the preset's run after it, is stored in docs/zoo/benchmarl.json; a seed that runs again
replaces its own. `--changes` are of BenchMARL's experiment, such as '{"lr": 0.0005}'.
"""

import argparse
import json
import os
from itertools import product

from .. import ROOT
from ..figures import write
from ..machine import processor, say
from ..peers.install import BENCHMARL
from .page import OF_BENCHMARL, TEAM_STEPS, TEAM_TASKS
from .zoo import BENCHMARL as FIGURES
from .zoo import read_figures, train_fresh

PROGRAM = ROOT / "bench" / "zoo" / "benchmarl_mpe.py"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", choices=TEAM_TASKS, default=TEAM_TASKS)
    parser.add_argument("--algorithms", nargs="+", choices=[*OF_BENCHMARL], default=[*OF_BENCHMARL])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--changes", default="{}", metavar="JSON")


def main(options: argparse.Namespace) -> None:
    for task, algorithm, seed in product(options.tasks, options.algorithms, options.seeds):
        load = os.getloadavg()[0]
        found = BENCHMARL.run("-I", PROGRAM, task.replace("-", "_"), algorithm, TEAM_STEPS, seed, options.changes)
        ours = train_fresh(f"{task}-{OF_BENCHMARL[algorithm]}", seed)
        found |= {"load": round(load, 1), "beside": {name: ours[name] for name in ("seconds", "cpu", "load")}}
        say(f"{task} {algorithm} {seed} {json.dumps(found)}")
        name = f"{task} {algorithm}" + (f" {options.changes}" if options.changes != "{}" else "")
        figures = read_figures(FIGURES)
        figures.setdefault("runs", {}).setdefault(name, {})[str(seed)] = found
        write(FIGURES, {**figures, "machine": processor(), "software": BENCHMARL.packages})
