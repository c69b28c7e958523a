"""`python -m bench.teams`: BenchMARL on MPE, at as many steps of the environment as the zoo's presets, for docs/zoo.md.

Each run is in the environment that `python -m bench.peers.install benchmarl` makes. It is stored in
docs/zoo/benchmarl.json, with the time that the preset's run took after it; a seed that runs again replaces its own.
`--changes` are of BenchMARL's experiment, such as '{"lr": 0.0005}'. `python -m bench.zoo --page` then renews the table
and the picture.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .figures import write
from .machine import processor
from .peers.install import BENCHMARL
from .zoo import BENCHMARL as FIGURES
from .zoo import read_figures, train_fresh
from .zoo_page import OF_BENCHMARL, TEAM_STEPS, TEAM_TASKS

PROGRAM = Path(__file__).with_name("peers") / "benchmarl_mpe.py"


def run(task: str, algorithm: str, steps: int, seed: int, changes: str) -> dict[str, Any]:
    """One run; -I, since peers has a torchrl.py."""
    command = [BENCHMARL.python, "-I", PROGRAM, task, algorithm, str(steps), str(seed), changes]
    load = os.getloadavg()[0]
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True)
    return {**json.loads(done.stdout.splitlines()[-1]), "load": round(load, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.teams", description=(__doc__ or "").partition(":")[2].strip()
    )
    parser.add_argument("--tasks", nargs="+", choices=TEAM_TASKS, default=TEAM_TASKS)
    parser.add_argument("--algorithms", nargs="+", choices=[*OF_BENCHMARL], default=[*OF_BENCHMARL])
    parser.add_argument("--steps", type=int, default=TEAM_STEPS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--changes", default="{}", metavar="JSON")
    options = parser.parse_args()
    if BENCHMARL.missing:
        sys.exit(f"BenchMARL is not installed: {BENCHMARL.missing}")
    for task in options.tasks:
        for algorithm in options.algorithms:
            for seed in options.seeds:
                found = run(task.replace("-", "_"), algorithm, options.steps, seed, options.changes)
                ours = train_fresh(f"{task}-{OF_BENCHMARL[algorithm]}", seed)
                found["beside"] = {measure: ours[measure] for measure in ("seconds", "cpu", "load")}
                sys.stdout.write(f"{task} {algorithm} {seed} {json.dumps(found)}\n")
                name = f"{task} {algorithm}" + (f" {options.changes}" if options.changes != "{}" else "")
                figures = read_figures(FIGURES)
                figures.setdefault("runs", {}).setdefault(name, {})[str(seed)] = found
                write(FIGURES, {**figures, "machine": processor(), "software": " ".join(BENCHMARL.packages)})


if __name__ == "__main__":
    main()
