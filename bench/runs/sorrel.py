"""`python -m bench sorrel`: sorrel's examples, by sorrel's own loop and by run_experiment_mp, at equal updates.

For each seed both sides run one after the other, in the environment that `python -m bench install sorrel` makes. The
rate is agent-steps divided by the seconds from the first turn, known to 50 ms, to the end of the call. The last column
has the seconds before the first turn, and the last line the ratio of the medians without and with these seconds.
"""

from __future__ import annotations

import argparse
import json
from statistics import fmean, median, stdev
from typing import Any

from .. import ROOT
from ..figures import origin, records
from ..machine import made, say
from ..peers.install import SORREL, WITH_MARLCORE

AGENTS = 5
OWN, PROCESSES = "sequential", "processes"
PROGRAM = ROOT / "bench" / "peers" / "sorrel_treasurehunt.py"


def run(side: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One experiment of one side, with one thread of torch a process."""
    wanted = {"side": side, "seed": seed, "agents": AGENTS, "options": json.loads(options.options)}
    wanted |= {name: getattr(options, name) for name in ("epochs", "turns", "world")}
    found = SORREL.run(PROGRAM, json.dumps(wanted), env={**WITH_MARLCORE, "OMP_NUM_THREADS": "1"})
    steps, seconds = found["steps"], found["seconds"]
    return {**found, "rate": steps / (seconds - found["start_s"]), "rate of the whole call": steps / seconds}


def row(side: str, seed: int, result: dict[str, Any]) -> dict[str, Any]:
    scores = result["scores"]
    halves = [f"{fmean(part):.1f} +- {stdev(part):.1f}" for part in (scores, scores[len(scores) // 2 :])]
    measured = {name: result[name] for name in ("updates", "steps", "seconds", "cpu_s")}
    measured |= {"steps a second": result["rate"], "score of an epoch": halves[0], "second half": halves[1]}
    before = {"restarts": result.get("restarts"), "s before the first turn": result["start_s"]}
    return {"side": side, "seed": str(seed), **measured, **before}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world", choices=["treasurehunt", "tag", "cleanup"], default="treasurehunt")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", default="0,1,2", help="with commas between")
    parser.add_argument("--options", default="{}", help="options of run_experiment_mp, as JSON")


def main(options: argparse.Namespace) -> None:
    runs: dict[str, list[dict[str, Any]]] = {OWN: [], PROCESSES: []}
    for seed in map(int, options.seeds.split(",")):
        for side in runs:
            runs[side].append(run(side, seed, options))
        say(records([row(side, seed, of_side[-1]) for side, of_side in runs.items()]))
    bare, whole = (
        median(run[rate] for run in runs[PROCESSES]) / median(run[rate] for run in runs[OWN])
        for rate in ("rate", "rate of the whole call")
    )
    say(f"in processes: {bare:.2f} times sorrel's own loop, {whole:.2f} times with the start of processes")
    say(origin(made(options.load_before)))
