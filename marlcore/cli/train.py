"""`marlcore train`: every field of Config and of the algorithm is an option."""

from __future__ import annotations

import dataclasses
import os
import re
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from .. import algos
from ..training import Config, described_run, read_metrics, summary
from ..training import train as run
from .options import parse

__all__ = ["train"]


@dataclass(frozen=True)
class TrainOptions:
    """Train every agent of an environment at once, each with its own replay, weights and learner.

    `marlcore train --resume RUN [--total-steps N]` continues an earlier run instead, from its last checkpoints.
    """

    env: str = "treasure_hunt"
    """treasure_hunt, gymnasium:<id>, pettingzoo:<module>, pettingzoo-parallel:<module> or <module>:<function>."""
    algo: str = "iqn"
    """The learning algorithm: dqn, iqn or <module>:<class>; the options that begin with --algorithm are its own."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its last checkpoints, with its settings."""

    resume: str
    """The run's directory."""
    total_steps: int | None = None
    """A new number of steps for the whole run, earlier steps included."""


def train(arguments: list[str]) -> int:
    """Runs `marlcore train` with these arguments and prints the result; 0.

    Raises: ValueError: an option is unknown or out of range, in one line; otherwise see `training.train`.
    """
    sys.path.append(os.getcwd())  # for modules of --env and --algo; workers use the same path
    resume = None
    if any(argument.partition("=")[0] == "--resume" for argument in arguments):
        given = parse(ResumeOptions, arguments, "train", "--resume takes only --total-steps, got {}".format)
        resume, (env, algorithm, config) = given.resume, described_run(given.resume)
        if given.total_steps is not None:
            config = dataclasses.replace(config, total_steps=given.total_steps)
    else:
        options: Any = _parse(arguments)
        env, algorithm, config = options.env, options.algorithm, options.config
    result = run(env, algorithm, config, resume=resume)
    metrics = read_metrics(result.run_dir / "metrics.csv")
    updates = ", ".join(f"{agent} {count:,}" for agent, count in result.updates.items())
    sys.stdout.write(summary(metrics, config.total_steps))
    sys.stdout.write(f"\nupdates: {updates}\nresults in {result.run_dir}\n")
    return 0


def _parse(arguments: list[str]) -> Any:
    """TrainOptions with a further field `algorithm`: the hyperparameters of the algorithm of --algo."""
    named = re.search(r"--algo[ =](\S+)", " ".join(arguments))
    algorithm = named[1] if named else TrainOptions.algo
    hyperparameters: Any = algos.find(algorithm)
    kind = dataclasses.make_dataclass(
        "TrainOptions",
        [("algorithm", hyperparameters, field(default_factory=hyperparameters))],
        bases=(TrainOptions,),
        frozen=True,
        namespace={"__doc__": TrainOptions.__doc__},
    )

    def refuse(option: str) -> str:
        is_the_algorithms = option.startswith("--algorithm.")
        return f"{option} is no option of {algorithm}" if is_the_algorithms else f"unknown option {option}"

    return parse(kind, arguments, "train", refuse)
