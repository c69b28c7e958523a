"""`marlcore train`: every field of Config and of the algorithm is an option."""

from __future__ import annotations

import dataclasses
import re
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

import tyro

from . import algos, envs
from .config import Config
from .options import parse
from .progress import summary
from .rundir import read_metrics
from .system import train as run

__all__ = ["train"]


@dataclass(frozen=True)
class TrainOptions:
    """Train every agent of an environment at once, each with a replay, weights and a learner of its own."""

    env: str = "treasure_hunt"
    """treasure_hunt, gymnasium:<id>, pettingzoo:<module> or pettingzoo-parallel:<module>."""
    algo: Literal["dqn", "iqn"] = "iqn"
    """The learning algorithm; its own options are those that begin with --algorithm."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


def train(arguments: list[str]) -> int:
    """Runs `marlcore train` with these arguments and prints what came of it; 0.

    Raises: ValueError: an option is unknown or out of range, in one line; and what `system.train` raises.
    """
    options: Any = _parse(arguments)
    env_fn = partial(envs.make, options.env)
    result = run(env_fn, options.algorithm, options.config)
    metrics = read_metrics(result.run_dir / "metrics.csv")
    updates = ", ".join(f"{agent} {count:,}" for agent, count in result.updates.items())
    sys.stdout.write(summary(metrics, options.config.total_steps))
    sys.stdout.write(f"\nupdates: {updates}\nresults in {result.run_dir}\n")
    return 0


def _parse(arguments: list[str]) -> Any:
    """TrainOptions with one more field, `algorithm`: the hyperparameters of the algorithm that --algo names."""
    named = re.search(r"--algo[ =](\S+)", " ".join(arguments))
    hyperparameters = algos.ALGORITHMS.get(named[1] if named else TrainOptions.algo, algos.IQN)
    kind = dataclasses.make_dataclass(
        "TrainOptions",
        [("algorithm", hyperparameters, field(default_factory=hyperparameters))],
        bases=(TrainOptions,),
        frozen=True,
        namespace={"__doc__": TrainOptions.__doc__},
    )
    return parse(kind, arguments, "train")
