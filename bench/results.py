"""`python -m bench.results`: what the default command learns, by environment and seed, beside random play.

Each run is `marlcore train --env ENV --algo ALGO --seed SEED` and nothing else, in a process of its own. The return of
a run is the mean over the episodes of its last tenth, all agents together. `--load N` keeps N other processes busy
meanwhile: with `updates_per_step` held, the returns must be the same.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean, median
from typing import Any

import gymnasium
import numpy as np

import marlcore as mc
from marlcore import algos
from marlcore.envs import NamedEnvironment
from marlcore.training.config import LearnerConfig

CELLS = 10


class Corridor(gymnasium.Env[Any, Any]):
    """Ten cells, one step left or right at a time; the last one pays 1 and ends the episode, as 50 steps do."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (CELLS,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._at = self._steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._at = max(0, self._at + (1 if action == 1 else -1))
        self._steps += 1
        there = self._at == CELLS - 1
        return self._observe(), float(there), there, not there and self._steps == 50, {}

    def _observe(self) -> Any:
        return np.eye(CELLS, dtype=np.float32)[self._at]


# environment: (what makes it, algorithm, steps where they are not the default)
TASKS: dict[str, tuple[Any, str, int | None]] = {
    "CartPole-v1": (NamedEnvironment("gymnasium:CartPole-v1"), "dqn", None),
    "LunarLander-v3": (NamedEnvironment("gymnasium:LunarLander-v3"), "dqn", None),
    "simple_spread_v3": (NamedEnvironment("pettingzoo:mpe2.simple_spread_v3"), "dqn", None),
    "treasure_hunt": (NamedEnvironment("treasure_hunt"), "iqn", None),
    "corridor of 10 cells": (Corridor, "dqn", 80_000),
}


def train(task: str, seed: int, mode: Any, play_randomly: bool = False) -> dict[str, Any]:
    """One run, in this process: its return, its seconds and its updates."""
    make, algorithm, steps = TASKS[task]
    given: dict[str, Any] = {} if steps is None else {"total_steps": steps}
    if play_randomly:  # epsilon stays 1 while nobody learns
        given = {"total_steps": 20_000, "updates_per_step": None, "learner": LearnerConfig(warmup=100_000)}
    with tempfile.TemporaryDirectory() as folder:
        config = mc.Config(seed=seed, mode=mode, run_dir=str(Path(folder) / "run"), **given)
        began = time.monotonic()
        result = mc.train(make, algos.make(algorithm), config, progress=False)
        seconds = time.monotonic() - began
    return {"return": fmean(result.returns.values()), "seconds": seconds, "updates": result.updates}


def run(task: str, seed: int, *options: str) -> dict[str, Any]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "bench.results", "--one", task, "--seeds", str(seed), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.results", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--task", action="append", choices=list(TASKS), help="of these alone")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="with commas between")
    parser.add_argument("--mode", default="async", choices=["async", "serial"])
    parser.add_argument("--load", type=int, default=0, metavar="N", help="other processes that keep busy meanwhile")
    parser.add_argument("--one", choices=list(TASKS), help=argparse.SUPPRESS)
    parser.add_argument("--random", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    if options.one:
        sys.stdout.write(json.dumps(train(options.one, seeds[0], options.mode, options.random)) + "\n")
        return
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, {options.load} busy beside\n")
    sys.stdout.write("| environment | algorithm | random play | returns by seed | median | seconds, median |\n")
    sys.stdout.write("|---|---|---|---|---|---|\n")
    with ExitStack() as stack:
        for _ in range(options.load):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        for task in options.task or TASKS:
            _report(task, seeds, options.mode)


def _report(task: str, seeds: list[int], mode: str) -> None:
    chance = run(task, 0, "--random")["return"]
    runs = [run(task, seed, "--mode", mode) for seed in seeds]
    returns = [one["return"] for one in runs]
    sys.stdout.write(
        f"| {task} | {TASKS[task][1]} | {chance:.4g} | {', '.join(f'{value:.4g}' for value in returns)} "
        f"| {median(returns):.4g} | {median(one['seconds'] for one in runs):.0f} |\n"
    )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
