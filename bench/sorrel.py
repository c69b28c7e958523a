"""`python -m bench.sorrel`: sorrel's examples, by sorrel's own loop and by run_experiment_mp, at equal updates.

For each seed both sides run one after the other, each in a process of its own, in the environment that
`python -m bench.peers.install sorrel` makes. The rate is agent-steps by the seconds from the first turn, seen to 50 ms,
to the end of the call: it leaves out the seconds before it, which the last column has. The last line states the ratio
of the medians without and with them. `--kill` has a learner killed by SIGKILL in the middle of each run in processes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from .peers.install import SORREL, WITH_MARLCORE

PROCESSES = "in processes"
PROGRAM = Path(__file__).with_name("peers") / "sorrel_treasurehunt.py"


def run(side: str, seed: int, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """One experiment of one side."""
    wanted = {
        "side": side, "seed": seed, "threads": threads, "agents": options.agents, "epochs": options.epochs,
        "turns": options.turns, "world": options.world, "kill": options.kill, "options": json.loads(options.options),
    }  # fmt: skip
    environment = {**WITH_MARLCORE, "OMP_NUM_THREADS": str(threads)}
    command = [str(SORREL.python), str(PROGRAM), json.dumps(wanted)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def rate(run: dict[str, Any], whole: bool = False) -> float:
    """Agent-steps a second from the first turn to the end; from the call on for the whole."""
    return float(run["steps"] / (run["seconds"] - (0.0 if whole else run["start_s"])))


def times(runs: dict[str, list[dict[str, Any]]], whole: bool) -> float:
    """The median rate in processes, by that of sorrel's own loop with its best number of threads."""
    rates = {name: median(rate(run, whole) for run in of_side) for name, of_side in runs.items()}
    return rates.pop(PROCESSES) / max(rates.values())


def row(side: str, seed: int, result: dict[str, Any]) -> str:
    scores = result["scores"]
    half = scores[len(scores) // 2 :]
    return (
        f"| {side} | {seed} | {result['updates']} | {result['steps']} | {result['seconds']:.1f} "
        f"| {result['cpu_s']:.1f} | {rate(result):.0f} "
        f"| {fmean(scores):.1f} +- {stdev(scores):.1f} | {fmean(half):.1f} +- {stdev(half):.1f} "
        f"| {result.get('restarts', '')} | {result['start_s']:.1f} |\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.sorrel", description="sorrel's loop and run_experiment_mp")
    parser.add_argument("--world", choices=["treasurehunt", "tag", "cleanup"], default="treasurehunt")
    parser.add_argument("--agents", type=int, default=5)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--seeds", default="0,1,2", help="with commas between")
    parser.add_argument("--threads", default="1", help="of torch in sorrel's own loop, with commas between")
    parser.add_argument("--kill", action="store_true", help="a learner, in the middle")
    parser.add_argument("--options", default="{}", help="of run_experiment_mp, as JSON")
    options = parser.parse_args()
    if SORREL.missing:
        sys.exit(f"sorrel is not installed: {SORREL.missing}")
    counts = [int(count) for count in options.threads.split(",")]
    sides = [(f"sequential, threads: {count}", "sequential", count) for count in counts]
    sides.append((PROCESSES, "processes", 1))
    titles = ["side", "seed", "updates", "agent-steps", "seconds", "CPU s", "agent-steps/s", "score of an epoch",
              "second half", "restarts", "s before the first turn"]  # fmt: skip
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before\n")
    sys.stdout.write(f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|\n")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in sides}
    for seed in map(int, options.seeds.split(",")):
        for name, side, threads in sides:
            result = run(side, seed, threads, options)
            runs[name].append(result)
            sys.stdout.write(row(name, seed, result))
            sys.stdout.flush()
            if result.get("left"):
                sys.exit(f"left behind in /dev/shm: {result['left']}")
    bare, whole = (times(runs, whole) for whole in (False, True))
    sys.stdout.write(
        f"in processes: {bare:.2f} times sorrel's own loop, {whole:.2f} times with the start of processes; "
        f"load {os.getloadavg()[0]:.1f} after\n"
    )


if __name__ == "__main__":
    main()
