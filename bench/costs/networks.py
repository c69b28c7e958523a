"""Updates and acting by small networks, compiled, by torch and in plain torch: `python -m bench networks`.

`--beside FOLDER` adds another tree of marlcore, built in place. The sides take turns, each in a process of its own;
times are CPU time, medians over the rounds.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import torch

from .. import ROOT
from ..figures import markdown
from ..machine import add_output, publish
from ..processes import in_turns

WORK = Path(__file__).with_name("networks_work.py")


def add_options(parser: argparse.ArgumentParser) -> None:
    add_output(parser, idle=True)
    parser.add_argument("--beside", type=Path, metavar="FOLDER", help="another tree of marlcore")
    parser.add_argument("--rounds", type=int, default=5, help="rounds in which the sides take turns")


def times_of(engine: str, tree: Path) -> dict[str, float]:
    """The seconds of each row, from a fresh process that imports this tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    done = subprocess.run([sys.executable, WORK, engine], env=environment, check=True, stdout=subprocess.PIPE)
    return dict(json.loads(done.stdout))


def product_rate() -> float:
    """GFLOP/s of torch's own product of 512 x 512 matrices, on one core."""
    torch.set_num_threads(1)
    matrix, times = torch.randn(512, 512), []
    for _ in range(50):
        began = time.thread_time()
        torch.mm(matrix, matrix)
        times.append(time.thread_time() - began)
    return 2 * 512**3 / median(times) / 1e9


def main(options: argparse.Namespace) -> None:
    sides = {
        "compiled": lambda: times_of("compiled", ROOT),
        "torch": lambda: times_of("torch", ROOT),
        "plain torch": lambda: times_of("plain", ROOT),
    }
    if options.beside:
        sides["beside"] = lambda: times_of("torch", options.beside.resolve())
    rounds = in_turns(sides, options.rounds)
    times = {side: {name: median(one[name] for one in taken) for name in taken[0]} for side, taken in rounds.items()}
    rows = []
    for name, ours in times["compiled"].items():
        others = [times[side].get(name) for side in times if side != "compiled"]
        rows.append([name, f"{1e6 * ours:.1f} us", *(other and f"{other / ours:.2f}" for other in others)])
    columns = ["row", "compiled", *(f"{side} / compiled" for side in times if side != "compiled")]
    text = f"{markdown(columns, rows)}\n\ntorch's product of 512 x 512: {product_rate():.0f} GFLOP/s"
    publish(options, text, times=times)
