"""`python -m bench sweep dqn`: whether other defaults of an algorithm would do better on five tasks.

A population tries 12 settings, drawn at random, on each task with one seed. The defaults, the best over all tasks and
settings given by `--also` then train with five other seeds, so that the choice earns nothing by chance. A score is the
mean return of 50 greedy episodes with the last weights: 0 is random play, 1 the task's threshold. docs/zoo/sweep.json
keeps each result at once, so an interrupted sweep goes on; who changes a default renames {}, the key of defaults.
`python -m bench zoo --page` writes the table.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import marlcore as mc
from marlcore.algos import make
from marlcore.meta.settings import with_settings
from marlcore.record import read_metrics

from ..figures import four_digits, write
from ..machine import processor, say
from ..runs.results import play_randomly
from .page import threshold_of
from .zoo import SWEEP, read_figures

MEMBERS, SEEDS, EPISODES = 12, (1, 2, 3, 4, 5), 50
THRESHOLDS = {"treasure_hunt": 100.0, "gymnasium:Pendulum-v1": -150.0}  # where Gymnasium registers none
DISCRETE = {  # steps of a run, and updates a step (PPO has its own)
    "gymnasium:CartPole-v1": (50_000, 0.25), "gymnasium:Acrobot-v1": (50_000, 0.25),
    "gymnasium:LunarLander-v3": (100_000, 0.25), "gymnasium:MountainCar-v0": (100_000, 0.25),
    "treasure_hunt": (100_000, 0.1),
}  # fmt: skip
ON_POLICY = {env: (2 * steps, 0.1) for env, (steps, _) in DISCRETE.items()}
CONTINUOUS = {
    "gymnasium:Pendulum-v1": (10_000, 1.0), "gymnasium:LunarLanderContinuous-v3": (50_000, 0.5),
    "gymnasium:InvertedDoublePendulum-v5": (30_000, 0.5), "gymnasium:Hopper-v5": (50_000, 0.5),
    "gymnasium:HalfCheetah-v5": (50_000, 0.5),
}  # fmt: skip
HIDDEN = mc.Choice((64, 64), (128, 64), (128, 128), (256, 256))
SHARED = {
    "algorithm.learning_rate": mc.LogUniform(1e-4, 2e-3),
    "algorithm.hidden": HIDDEN,
    "algorithm.tau": mc.LogUniform(2e-3, 5e-2),
    "algorithm.reward_scale": mc.LogUniform(0.03, 1.0),
}
SWEPT = {
    "dqn": (DISCRETE, {**SHARED, "learner.n_step": mc.Choice(1, 3, 5)}),
    "iqn": (DISCRETE, {**SHARED, "algorithm.kappa": mc.LogUniform(0.1, 3.0)}),
    "ppo": (
        ON_POLICY,
        {
            "algorithm.learning_rate": mc.LogUniform(1e-4, 3e-3),
            "algorithm.hidden": HIDDEN,
            "algorithm.batch_size": mc.Choice(512, 1024, 2048, 4096),
            "algorithm.gae_lambda": mc.Choice(0.9, 0.95, 0.98),
            "algorithm.entropy_coefficient": mc.LogUniform(1e-4, 3e-2),
        },
    ),
    "sac": (CONTINUOUS, {**SHARED, "algorithm.temperature": mc.LogUniform(0.02, 1.0)}),
}


def config_of(algorithm: str, env: str, folder: str) -> mc.Config:
    steps, updates = SWEPT[algorithm][0][env]
    evaluation = mc.EvaluationConfig(interval=steps, episodes=EPISODES, wait=True)
    return mc.Config(steps, mode="serial", run_dir=f"{folder}/runs", updates_per_step=updates, evaluation=evaluation)


def draw(algorithm: str, env: str, chance: float) -> list[dict[str, Any]]:
    """Each member's settings and score; on every task, the members have the same settings."""
    population = mc.PopulationConfig(settings=SWEPT[algorithm][1], size=MEMBERS, parallel=1, method="random")
    with tempfile.TemporaryDirectory() as folder:
        members = mc.train_population(env, algorithm, config_of(algorithm, env, folder), population, progress=False)
    ordered = sorted(members, key=lambda member: member.number)
    return [{"settings": each.settings, "score": scaled(each.score, env, chance)} for each in ordered]


def confirm(algorithm: str, env: str, settings: Mapping[str, Any], chance: float) -> list[float]:
    """A score a seed."""
    with tempfile.TemporaryDirectory() as folder:
        config, chosen = with_settings(config_of(algorithm, env, folder), make(algorithm), settings)
        results = mc.train_seeds(env, chosen, config, SEEDS, progress=False)
        return [scaled(last_evaluation(result.run_dir), env, chance) for result in results]


def last_evaluation(run_dir: Path) -> float:
    """The mean over the agents."""
    rows = read_metrics(run_dir / "metrics.csv")
    return float(np.mean([*{row.agent: row.value for row in rows if row.name == "eval_return"}.values()]))


def scaled(mean: float, env: str, chance: float) -> float:
    threshold = THRESHOLDS.get(env) or threshold_of(env)
    return max(mean - chance, 0.0) / (threshold - chance)  # what diverged, to minus infinity, scores as chance does


def best_of(members: Mapping[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The settings with the best mean over the tasks, of which each counts up to 1: none makes up for another."""
    means = np.mean([[min(each["score"], 1.0) for each in scores] for scores in members.values()], 0)
    return with_tuples(four_digits(next(iter(members.values()))[int(np.argmax(means))]["settings"]))  # as stored


def with_tuples(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("algorithm", choices=SWEPT)
    parser.add_argument("--also", type=json.loads, nargs="*", default=[], metavar="JSON", help="further settings")


def main(options: argparse.Namespace) -> None:
    name = options.algorithm
    record = read_figures(SWEEP).get(name, {"machine": processor(), "random": {}, "members": {}, "seeds": {}})
    chances, members = record["random"], record["members"]

    def keep(scores: Any, env: str, settings: Any = "drawn") -> None:
        write(SWEEP, {**read_figures(SWEEP), name: record})
        say(f"{name} {env} {settings}: {np.round(scores, 2)}")

    for env in (env for env in SWEPT[name][0] if env not in members):
        chances[env] = play_randomly(env)
        members[env] = draw(name, env, chances[env])
        keep([each["score"] for each in members[env]], env)
    for settings in ({}, best_of(members), *map(with_tuples, options.also)):
        seeds = record["seeds"].setdefault(json.dumps(settings, sort_keys=True), {})
        for env in (env for env in members if env not in seeds):
            seeds[env] = confirm(name, env, settings, chances[env])
            keep(seeds[env], env, settings)
