"""`marlcore train`: every field of Config and of the algorithm is an option."""

from __future__ import annotations

import dataclasses
import os
import sys
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any

import tyro

from .. import algos
from ..checks import did_you_mean
from ..training import Config, Result, Settings, described_run, names_of, read_settings, summary, train_seeds
from ..training import train as run
from .options import parse


@dataclass(frozen=True)
class TrainOptions:
    """Train every agent of an environment at once, each with its own replay, weights and learner.

    `marlcore train --resume RUN [--total-steps N] [--trust]` continues an earlier run instead, from its last
    checkpoints; it executes what the run's config.json names.
    """

    env: str = "treasure_hunt"
    """treasure_hunt, recall, gymnasium:<id>, atari:<game>, pettingzoo:<module>, pettingzoo-parallel:<module> or
    <module>:<function>."""
    algo: str = "iqn"
    """The learning algorithm: dqn, iqn, mappo, ppo, r2d2, recurrentppo, sac, td3 or <module>:<class>; options that
    begin with --algorithm are its own."""
    seeds: tuple[int, ...] = ()
    """Instead of --seed: a run for each of these, one after another, with their curves together."""
    settings: str | None = None
    """A YAML file of settings, with these options' names as its keys; options override it."""
    config: Annotated[Config, tyro.conf.arg(name="")] = field(default_factory=Config)


@dataclass(frozen=True)
class ResumeOptions:
    """Continue a run from its last checkpoints, with its settings.

    A run's directory is code: this command imports and calls what its config.json names. See docs/security.md.
    """

    resume: str
    """The run's directory."""
    total_steps: int | None = None
    """A new number of steps for the whole run, earlier steps included."""
    trust: tyro.conf.FlagCreatePairsOff[bool] = False
    """Execute the code of a run's directory that another user could have changed."""


def train(arguments: list[str]) -> int:
    """Runs `marlcore train` with these arguments and prints the result; 0.

    Raises: ValueError: an option is unknown or out of range, in one line; otherwise see `training.train`.
    """
    sys.path.append(os.getcwd())  # for modules of --env and --algo; workers use the same path
    resume = None
    if any(argument.partition("=")[0] == "--resume" for argument in arguments):
        given = parse(ResumeOptions, arguments, "train", "--resume takes only --total-steps and --trust, got {}".format)
        resume, (env, algorithm, config) = given.resume, described_run(given.resume, trust=given.trust)
        if given.total_steps is not None:
            config = dataclasses.replace(config, total_steps=given.total_steps)
    else:
        options: Any = _parse(arguments)
        env, algorithm, config = options.env, options.algorithm, options.config
        if options.seeds:
            _print_seeds(options.seeds, train_seeds(env, algorithm, config, options.seeds))
            return 0
    result = run(env, algorithm, config, resume=resume)
    updates = ", ".join(f"{agent} {count:,}" for agent, count in result.updates.items())
    sys.stdout.write(summary(result.returns))
    sys.stdout.write(f"\nupdates: {updates}\nresults in {result.run_dir}\n")
    return 0


def _print_seeds(seeds: tuple[int, ...], results: list[Result]) -> None:
    for seed, result in zip(seeds, results, strict=True):
        returns = ", ".join(f"{agent} {value:,.2f}" for agent, value in result.returns.items())
        sys.stdout.write(f"seed {seed}: mean return at the end: {returns}\n")
    sys.stdout.write(f"results in {results[0].run_dir.parent}\n")


def _parse(arguments: list[str]) -> Any:
    """TrainOptions with a further field `algorithm`: the hyperparameters of the algorithm of --algo."""
    file, named = (_given(name, arguments) for name in ("--settings", "--algo"))
    settings = read_settings(file) if file else Settings(Config(), None, None, {})
    algorithm = named or settings.algo or TrainOptions.algo
    hyperparameters: Any = algos.find(algorithm)
    given = settings.algorithm if settings.algo in (None, algorithm) else {}
    kind: Any = dataclasses.make_dataclass(
        "TrainOptions",
        [("algorithm", hyperparameters, field(default_factory=lambda: _made(kind, hyperparameters, given)))],
        bases=(TrainOptions,),
        frozen=True,
        namespace={"__doc__": TrainOptions.__doc__},
    )

    def refuse(option: str) -> str:
        is_the_algorithms = option.startswith("--algorithm.")
        return f"{option} is no option of {algorithm}" if is_the_algorithms else f"unknown option {option}"

    default = kind(env=settings.env or TrainOptions.env, algo=algorithm, config=settings.config)
    return parse(kind, arguments, "train", refuse, default)


def _given(option: str, arguments: list[str]) -> str | None:
    """The value of an option among the arguments: the word after it, or after its "="."""
    for word, following in pairwise([*arguments, ""]):
        if word == option:
            return following
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return None


def _made(options: type, kind: Any, hyperparameters: dict[str, Any]) -> Any:
    """Raises ValueError: a file gave the algorithm an unknown hyperparameter."""
    names = [one.name for one in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else []
    for name in hyperparameters:
        if name not in names:
            key = f"algorithm.{name}"
            raise ValueError(f"unknown setting {key}{did_you_mean(key, names_of(options))}")
    return kind(**hyperparameters)
