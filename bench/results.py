"""`python -m bench.results`: what training learns, by task and seed, beside random play, with a picture of the curves.

Each run is in a process of its own; its return is the mean over the episodes of its last tenth, all agents together.
With `--evaluate`, the last weights then play 100 greedy episodes. `--store` keeps the figures for docs/results.md.
`--load N` keeps N other processes busy meanwhile: with `updates_per_step` held, the returns must be the same.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

import marlcore as mc
from marlcore.envs import factory, vectorize
from marlcore.processes import Metric
from marlcore.spaces import MASK
from marlcore.training import read_metrics
from marlcore.training.record import plot_runs

from .figures import FOLDER, load, today, write
from .fresh import run_fresh
from .machine import load_since, processor, software
from .pages import results_table
from .tasks import TASKS, Task

EPISODES = 100  # of a greedy evaluation
STORED = FOLDER / "results.json"


def train(task: Task, seed: int, run_dir: Path, mode: Any, evaluate: bool) -> dict[str, Any]:
    """One run, in this process: its return, its seconds and its updates, and the return of greedy episodes."""
    if task.peer is not None:
        return train_peer(task, seed, run_dir)
    began = time.monotonic()
    config = replace(task.config, seed=seed, mode=mode, run_dir=str(run_dir))
    result = mc.train(task.env, task.algorithm, config, progress=False)
    seconds = time.monotonic() - began
    results = {"return": fmean(result.returns.values()), "seconds": seconds, "updates": result.updates}
    return results if not evaluate else {**results, "greedy": fmean(mc.evaluate(run_dir, EPISODES).mean.values())}


def play_randomly(env_fn: Any, steps: int = 20_000) -> float:
    """The mean return of an agent's episodes under uniform random actions that are allowed."""
    env = vectorize(factory(env_fn), 4)
    for number, spaces in enumerate(env.spaces.values()):
        spaces.action.seed(number)
    env.reset(0)
    running = {agent: np.zeros(env.copies) for agent in env.agents}
    ended: list[float] = []
    while steps > 0:
        before = env.ended.copy()
        outcomes, turns = env.observe()
        for outcome in outcomes:
            running[outcome.agent][outcome.copies] += outcome.reward
        over = env.ended > before
        for returns in running.values():
            ended.extend(returns[over].tolist())
            returns[over] = 0.0
        for turn in turns:
            spaces = env.spaces[turn.agent]
            masks = turn.obs[MASK].astype(np.int8) if spaces.masked else [None] * len(turn.copies)
            drawn = np.stack([spaces.action.sample(mask) for mask in masks])
            env.act(turn, (drawn - spaces.action_start).astype(spaces.action_field.dtype))
            steps -= len(turn.copies)
    env.close()
    return fmean(ended)


def train_peer(task: Task, seed: int, run_dir: Path) -> dict[str, Any]:
    """The same of a task's peer."""
    steps = task.config.total_steps
    episodes: list[tuple[int, float]] = []
    began = time.monotonic()
    assert task.peer is not None
    task.peer(seed, steps, lambda step, value: episodes.append((step, value)))
    run_dir.mkdir()
    rows = "".join(f"0,{step},agent_0,episode_return,{value!r}\n" for step, value in episodes)
    (run_dir / "metrics.csv").write_text("time_s,step,agent,name,value\n" + rows)
    late = fmean(value for step, value in episodes if step > 0.9 * steps)
    return {"return": late, "seconds": time.monotonic() - began}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.results", description=__doc__.partition(":")[2].strip())
    parser.add_argument("--task", action="append", choices=list(TASKS), help="of these alone")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="with commas between")
    parser.add_argument("--mode", default="async", choices=["async", "serial"])
    parser.add_argument("--evaluate", action="store_true", help=f"play {EPISODES} greedy episodes after each run")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="other processes that keep busy meanwhile")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="of each task's curves, such as docs/results")
    parser.add_argument("--beside", choices=list(TASKS), help="in the pictures, the curves of this task too")
    parser.add_argument(
        "--store", action="store_true", help="keep the figures in docs/figures/results.json, for the pages"
    )
    options = parser.parse_args()
    seeds = [int(seed) for seed in options.seeds.split(",")]
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before, {options.load} busy beside\n")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for _ in range(options.load):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        report = partial(_report, seeds=seeds, folder=folder, options=options)
        beside = report(options.beside) if options.beside else []
        for task in options.task or [name for name in TASKS if TASKS[name].peer is None]:
            curves = report(task)
            if options.plots is not None:
                options.plots.mkdir(parents=True, exist_ok=True)
                _draw(task, curves, options.beside, beside, options.plots / f"{_file_name(task)}.png")


def _report(task: str, seeds: list[int], folder: Path, options: argparse.Namespace) -> list[list[Metric]]:
    """Writes a task's table; returns the metrics of its runs, each of which has a process of its own."""
    folders = {seed: folder / f"{_file_name(task)}-{seed}" for seed in seeds}
    of_task, before = TASKS[task], os.getloadavg()[0]
    runs = [run_fresh(train, of_task, seed, folders[seed], options.mode, options.evaluate) for seed in seeds]
    algorithm = of_task.algorithm
    record = {
        "algorithm": algorithm if isinstance(algorithm, str) else type(algorithm).__name__.lower(),
        "steps": of_task.config.total_steps,
        "random": None if of_task.peer else play_randomly(of_task.env),
        "returns": [one["return"] for one in runs],
        "greedy": [one["greedy"] for one in runs if "greedy" in one] or None,  # peers cannot
        "seconds": round(median(one["seconds"] for one in runs)),
        "load": load_since(before),
        "date": today(),
        "machine": processor(),
        "software": software(),
    }
    name = task + ", serial" * (options.mode == "serial") + f", {options.load} busy beside" * bool(options.load)
    sys.stdout.write(results_table({name: record}))
    sys.stdout.flush()
    if options.store:
        write(STORED, {**load(STORED.stem), name: record})
    return [read_metrics(folders[seed] / "metrics.csv") for seed in seeds]


def _draw(task: str, curves: list[list[Metric]], beside: str | None, others: list[list[Metric]], path: Path) -> None:
    """A picture of a task's runs; with others beside them, each side's agents are one curve."""
    if beside is not None:
        curves = [
            [replace(one, agent=task) for one in mine] + [replace(one, agent=beside) for one in theirs]
            for mine, theirs in zip(curves, others, strict=True)
        ]
    plot_runs(curves, path, f"{task}, {len(curves)} seeds")


def _file_name(task: str) -> str:
    return re.sub(r"\W+", "-", task).strip("-").lower()


if __name__ == "__main__":
    main()
