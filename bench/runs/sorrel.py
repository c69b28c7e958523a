"""`python -m bench sorrel`: sorrel's examples, by sorrel's own loop and by run_experiment_mp, at equal updates.

For each seed both sides run one after the other, in the environment that `python -m bench install sorrel` makes. The
rate is agent-steps divided by the seconds from the first turn, known to 50 ms, to the end of the call. The last column
has the seconds before the first turn, and the last line the ratio of the medians without and with these seconds.
"""

from __future__ import annotations

import argparse
import json
from statistics import fmean, stdev
from typing import Any

from .. import ROOT
from ..figures import origin, records
from ..machine import made, say
from ..peers.install import SORREL, WITH_MARLCORE
from ..processes import medians

AGENTS = 5
BARE, WHOLE = "steps a second", "of the whole call"
PROGRAM = ROOT / "bench" / "peers" / "sorrel_treasurehunt.py"


def run(side: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """A row: one experiment of one side, with one thread of torch a process."""
    wanted = {"side": side, "seed": seed, "agents": AGENTS, "options": json.loads(options.options)}
    wanted |= {name: getattr(options, name) for name in ("epochs", "turns", "world")}
    found = SORREL.run(PROGRAM, json.dumps(wanted), env={**WITH_MARLCORE, "OMP_NUM_THREADS": "1"})
    scores, steps, seconds, start_s = (found[name] for name in ("scores", "steps", "seconds", "start_s"))
    halves = [f"{fmean(part):.1f} +- {stdev(part):.1f}" for part in (scores, scores[len(scores) // 2 :])]
    measured = {name: found[name] for name in ("updates", "steps", "seconds", "cpu_s")}
    measured |= {BARE: steps / (seconds - start_s), WHOLE: steps / seconds}
    measured |= {"score of an epoch": halves[0], "second half": halves[1], "restarts": found.get("restarts")}
    return {"side": side, "seed": str(seed), **measured, "s before the first turn": start_s}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--world", choices=["treasurehunt", "tag", "cleanup"], default="treasurehunt")
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", default="0,1,2", help="with commas between")
    parser.add_argument("--options", default="{}", help="options of run_experiment_mp, as JSON")


def main(options: argparse.Namespace) -> None:
    runs: dict[str, list[dict[str, Any]]] = {"sequential": [], "processes": []}
    for seed in map(int, options.seeds.split(",")):
        for side in runs:
            runs[side].append(run(side, seed, options))
        say(records([of_side[-1] for of_side in runs.values()]))
    own, processes = (medians(of_side) for of_side in runs.values())
    bare, whole = (processes[rate] / own[rate] for rate in (BARE, WHOLE))
    say(f"in processes: {bare:.2f} times sorrel's own loop, {whole:.2f} times with the start of processes")
    say(origin(made(options.load_before)))
