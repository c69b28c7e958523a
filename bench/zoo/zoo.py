"""`python -m bench zoo --only PRESET`: trains presets, and stores what they learned in docs/zoo/figures.json.

After a run, its last and its best weights play 100 greedy episodes. A seed that is trained again replaces its stored
run; a preset whose settings have changed loses its earlier runs. `--page` writes docs/zoo.md without training.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

import numpy as np

import marlcore as mc
from marlcore.config import PRESETS, preset_names
from marlcore.envs import factory, vectorize
from marlcore.record import read_metrics
from marlcore.record.curves import returns_of

from .. import ROOT
from ..machine import cpu_seconds, say, system
from ..processes import run_fresh
from ..runs.results import EPISODES, play_randomly
from ..runs.training import play_both_sides
from . import page

FIGURES = ROOT / "docs" / "zoo" / "figures.json"
SWEEP = FIGURES.with_name("sweep.json")  # of `python -m bench sweep`
BENCHMARL = FIGURES.with_name("benchmarl.json")  # of `python -m bench teams`
BINS = 30  # of a stored curve
FRAMES = 18_000  # of an Atari episode, as Mnih et al. 2015 evaluate: a greedy policy may wait for ever to serve


def play_any(obs: Any, rng: np.random.Generator = np.random.default_rng(0)) -> int:  # noqa: B008
    """Plays any allowed action."""
    return int(rng.choice(np.flatnonzero(obs["action_mask"])))


def read_figures(path: Path) -> dict[str, Any]:
    """The records by preset; none without the file."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def digest_of(preset: str) -> str:
    """Hashes the settings on which a preset's figures depend; waiting for evaluations changes no training."""
    settings = (PRESETS / f"{preset}.yaml").read_text().replace(", wait: true", "")
    return hashlib.sha256(settings.encode()).hexdigest()[:16]


def train_fresh(preset: str, seed: int) -> dict[str, Any]:
    """`train` in a process of its own, which leaves no files."""
    with tempfile.TemporaryDirectory() as folder:
        return run_fresh(train, preset, seed, Path(folder) / "run")


def train(preset: str, seed: int, run_dir: Path) -> dict[str, Any]:
    """One run, in this process."""
    env, algorithm, config = mc.preset(preset)
    with closing(vectorize(factory(env), 1)) as made:
        agents = len(made.agents)  # a team's return is the sum of several
    load, began, used = os.getloadavg()[0], time.monotonic(), cpu_seconds()
    mc.train(env, algorithm, replace(config, seed=seed, run_dir=str(run_dir)), progress=False)
    seconds, cpu = time.monotonic() - began, cpu_seconds() - used
    if config.self_play.pool:  # against random play; a draw counts half
        scores = {"last": float((1 + np.sign(play_both_sides(run_dir, play_any, EPISODES))).mean() / 2)}
    else:
        kept = ["last", "best"] if config.evaluation.evaluates else ["last"]
        capped = mc.NamedEnvironment(env, {"max_num_frames_per_episode": FRAMES}) if env.startswith("atari:") else None
        means = {which: mc.evaluate(run_dir, EPISODES, which=which, env_fn=capped).mean for which in kept}
        scores = {which: sum(mean.values()) / agents for which, mean in means.items()}
    curve = binned(run_dir, config.total_steps, agents)
    costs = {"seconds": round(seconds), "cpu": round(cpu), "load": round(load, 1), "on": machine()}
    return {**scores, **costs, "curve": curve}


def machine() -> str:
    software = ", ".join(f"{package} {metadata.version(package)}" for package in ("gymnasium", "numpy", "torch"))
    return f"{system()}; Python {python_version()}, {software}"


def binned(run_dir: Path, steps: int, agents: int) -> list[float | None]:
    """An agent's mean return over the run's own episodes that end in each part; None without any."""
    returns = returns_of(read_metrics(run_dir / "metrics.csv"))
    episodes = np.concatenate([*returns.values()]) * [1, len(returns) / agents]
    places = np.minimum(episodes[:, 0] * BINS // steps, BINS - 1)
    parts = [episodes[places == place, 1] for place in range(BINS)]
    return [float(f"{part.mean():.4g}") if len(part) else None for part in parts]


def record_of(figures: Mapping[str, Any], preset: str) -> dict[str, Any]:
    """A preset's record with the runs that still count."""
    record, settings = figures.get(preset, {}), digest_of(preset)
    if record.get("settings") == settings:
        return dict(record)
    env, _, config = mc.preset(preset)
    chance = {} if config.self_play.pool else {"random": float(f"{play_randomly(env):.4g}")}
    return {"settings": settings, **chance, "runs": {}}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=preset_names(), metavar="PRESET", help="by default all")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--page", action="store_true", help="write docs/zoo.md, and train nothing")


def main(options: argparse.Namespace) -> None:
    figures = read_figures(FIGURES)
    if options.page:
        page.write(figures, read_figures(SWEEP), read_figures(BENCHMARL))
        return
    for preset in options.only or preset_names():
        figures[preset] = record_of(figures, preset)
        for seed in options.seeds:
            run = train_fresh(preset, seed)
            figures[preset]["runs"][str(seed)] = run
            shown = {name: value for name, value in run.items() if name != "curve"}
            say(f"{preset} {seed} {json.dumps(shown)}")
            FIGURES.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
