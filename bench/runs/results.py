"""`python -m bench results`: what training learns, by task and seed, beside random play, with a picture of the curves.

A run's return is the mean over the episodes of its last tenth, all agents together. `--store` keeps the figures for
docs/results.md. `--load N` keeps N other processes busy: with `updates_per_step` held, returns must be the same.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from random_play import sample

import marlcore as mc
from marlcore.envs import factory, vectorize
from marlcore.processes import Metric
from marlcore.record import plot_runs, read_metrics

from ..figures import FOLDER, load, origin, write
from ..machine import made, say
from ..pages.pages import results_table
from ..processes import run_fresh
from .tasks import TASKS, Task
from .training import trained

EPISODES = 100  # of a greedy evaluation
STORED = FOLDER / "results.json"
STORE = f"keep the figures in {STORED}, for the pages"


def train(task: Task, seed: int, mode: Any, evaluate: bool) -> tuple[dict[str, Any], list[Metric]]:
    """A run's return and seconds, with the return of greedy episodes where asked for; and its metrics."""
    began, steps = time.monotonic(), task.config.total_steps
    if task.peer is not None:
        told: list[Metric] = []
        task.peer(seed, steps, lambda step, value: told.append(Metric(0.0, step, "agent_0", "episode_return", value)))
        late = fmean(metric.value for metric in told if metric.step > 0.9 * steps)
        return {"return": late, "seconds": time.monotonic() - began}, told
    with trained(task.env, task.algorithm, replace(task.config, seed=seed, mode=mode)) as result:
        record = {"return": fmean(result.returns.values()), "seconds": time.monotonic() - began}
        metrics = read_metrics(result.run_dir / "metrics.csv")
        record["whole"] = fmean(metric.value for metric in metrics if metric.name == "episode_return")
        record["updates"] = sum(result.updates.values())
        if evaluate:
            record["greedy"] = fmean(mc.evaluate(result.run_dir, EPISODES).mean.values())
        return record, metrics


def play_randomly(env_fn: Any, steps: int = 20_000) -> float:
    """The mean return of an agent's episodes under uniform random actions that are allowed."""
    env, rng = vectorize(factory(env_fn), 4), np.random.default_rng(0)
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
            env.act(turn, sample(env.spaces[turn.agent], turn.obs, rng))
            steps -= len(turn.copies)
    env.close()
    return fmean(ended)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", action="append", choices=list(TASKS), help="run only this task; may be repeated")
    parser.add_argument("--seeds", default="0,1,2,3,4", help="with commas between")
    parser.add_argument("--mode", default="async", choices=["async", "serial"])
    parser.add_argument("--evaluate", action="store_true", help=f"play {EPISODES} greedy episodes after each run")
    parser.add_argument("--load", type=int, default=0, metavar="N", help="keep N other processes busy meanwhile")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="for each task's curves, such as docs/results")
    parser.add_argument("--beside", choices=list(TASKS), help="draw the curves of this task in the pictures, too")


def main(options: argparse.Namespace) -> None:
    with ExitStack() as stack:
        for _ in range(options.load):
            stack.callback(subprocess.Popen([sys.executable, "-c", "while True: pass"]).kill)
        beside = _report(options.beside, options) if options.beside else []
        for task in options.task or [name for name in TASKS if TASKS[name].peer is None]:
            curves = _report(task, options)
            if options.plots is not None:
                options.plots.mkdir(parents=True, exist_ok=True)
                file = re.sub(r"\W+", "-", task).strip("-").lower()
                if options.beside is not None:  # each side's agents are one curve
                    pairs = zip(curves, beside, strict=True)
                    named = [((task, mine), (options.beside, theirs)) for mine, theirs in pairs]
                    curves = [[replace(one, agent=name) for name, run in sides for one in run] for sides in named]
                plot_runs(curves, options.plots / f"{file}.png", f"{task}, {len(curves)} seeds")


def _report(task: str, options: argparse.Namespace) -> list[list[Metric]]:
    """Writes a task's table; returns the metrics of its runs, each of which has a process of its own."""
    of_task, before = TASKS[task], os.getloadavg()[0]
    seeds = map(int, options.seeds.split(","))
    trained = (run_fresh(train, of_task, seed, options.mode, options.evaluate) for seed in seeds)
    runs, metrics = zip(*trained, strict=True)
    algorithm = of_task.algorithm
    record = {
        "algorithm": algorithm if isinstance(algorithm, str) else type(algorithm).__name__.lower(),
        "steps": of_task.config.total_steps,
        "random": None if of_task.peer else play_randomly(of_task.env),
        "returns": [one["return"] for one in runs],
        **{name: [one[name] for one in runs] for name in ("whole", "greedy", "updates") if name in runs[0]},
        "seconds": round(median(one["seconds"] for one in runs)),
        **made(before),
    }
    name = task + ", serial" * (options.mode == "serial") + f", {options.load} busy beside" * bool(options.load)
    say(results_table({name: record}) + origin(record))
    if options.store:
        write(STORED, {**load(STORED.stem), name: record})
    return list(metrics)
