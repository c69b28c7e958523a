"""`python -m bench defaults --only dqn`: an algorithm's default settings beside others, on presets of the zoo.

A run's score is 0 for random play's return and 1 for what RL Zoo reports, or, where it reports none, the zoo's own row.
`docs/zoo/defaults.json` keeps the scores; `python -m bench zoo --page` writes their table.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from ..machine import say
from . import page, zoo

PRESETS = {  # by algorithm: those that take minutes
    "dqn": ["cartpole-dqn", "lunarlander-dqn"],
    "ppo": ["acrobot-ppo", "cartpole-ppo", "lunarlander-ppo"],
    "sac": ["pendulum-sac"],
    "td3": ["pendulum-td3"],
    "iqn": ["treasure-hunt-iqn"],
    "r2d2": ["recall-r2d2"],
}
OFF_POLICY: list[dict[str, Any]] = [{}, {"learning_rate": 3e-4}, {"hidden": (256, 256)}, {"tau": 0.005}]
SLOW: dict[str, Any] = {"learning_rate": 3e-4}  # PPO's default once
CHANGES: dict[str, list[dict[str, Any]]] = {
    "dqn": [{}, {"learning_rate": 5e-4}, {"learning_rate": 1e-3}, {"hidden": (128, 128)}, {"tau": 0.005}],
    "ppo": [{}, SLOW, SLOW | {"batch_size": 1024}, SLOW | {"gae_lambda": 0.9}, SLOW | {"entropy_coefficient": 0.01}],
    "sac": OFF_POLICY,
    "td3": OFF_POLICY,
    "iqn": [{}, {"learning_rate": 5e-4}, {"learning_rate": 1e-3}, {"hidden": (128, 128)}, {"tau": 0.005}],
    "r2d2": [{}, {"learning_rate": 2.5e-4}, {"learning_rate": 1e-3}, {"cell": "gru"}, {"tau": 0.005}],
}


def score_of(preset: str, changes: dict[str, Any], seed: int, record: Mapping[str, Any]) -> float:
    run, chance = zoo.train_fresh(preset, seed, changes), record["random"]
    own = page.interquartile_mean([run["last"] for run in record["runs"].values()])
    return round((run["last"] - chance) / (page.RL_ZOO.get(preset, own)[0] - chance), 3)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=list(PRESETS), default=list(PRESETS), metavar="ALGORITHM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])


def main(options: argparse.Namespace) -> None:
    figures = zoo.read_figures(zoo.FIGURES)
    for algorithm in options.only:
        for changes in CHANGES[algorithm]:
            name = ", ".join(f"{key}={value}" for key, value in changes.items()) or "defaults"
            for preset in PRESETS[algorithm]:
                scores = [score_of(preset, changes, seed, figures[preset]) for seed in options.seeds]
                stored = zoo.read_figures(zoo.DEFAULTS)  # by algorithm, change and preset
                stored.setdefault(algorithm, {}).setdefault(name, {})[preset] = scores
                zoo.DEFAULTS.write_text(json.dumps(stored, indent=1) + "\n")
                say(f"{algorithm} {name} {preset} {scores}")
