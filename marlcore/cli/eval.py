"""`marlcore eval`: plays episodes with a run's policies; prints their returns, and films one."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from typing import Annotated

import tyro
from rich.console import Console

from ..training import EvaluatedRun, evaluate
from .options import CommandLine
from .video import check_format, film, write_video

WIDTH = 200  # of a table outside a terminal


@dataclass(frozen=True)
class EvalOptions:
    """Play whole episodes with a run's policies, greedily; print returns with confidence intervals.

    The run may still go on: its checkpoints are read. A run's directory is code, which this command executes; see
    docs/security.md.
    """

    run_dir: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="RUN")]]
    """Directory of the run."""
    episodes: int = 100
    """Episodes to play."""
    which: str = "last"
    """The checkpoints: last; best, by the run's evaluations; or the step of a kept one."""
    envs: int = 8
    """Environment copies that play together."""
    seed: int = 0
    """The same seed plays the same episodes."""
    explore: bool = False
    """Explore as actors do with these weights."""
    policies: dict[str, str] = field(default_factory=dict)
    """What acts instead of a policy or an agent: module:name of a function of an observation, or of a class or an
    object with a method act(obs); or the directory of another run."""
    env: str = ""
    """Another environment than the run's, as in marlcore train."""
    trust: bool = False
    """Execute the code of a run's directory that another user could have changed."""
    video: str = ""
    """A file for one more episode, filmed: .gif or .mp4."""


def main(arguments: list[str]) -> int:
    """Runs `marlcore eval` with these arguments and prints the table; 0."""
    sys.path.append(os.getcwd())  # for modules of the run's environment and algorithms
    options = CommandLine("eval", arguments).parse(EvalOptions, positional="run_dir")
    env_fn = options.env or None
    run_dir, video = os.path.abspath(options.run_dir), os.path.abspath(options.video)  # environments may move
    policies = {name: os.path.abspath(it) if os.path.isdir(it) else it for name, it in options.policies.items()}
    if options.video:
        check_format(options.video)
        run = EvaluatedRun(run_dir, options.which, policies, env_fn, trust=options.trust)
        write_video(video, *film(run, options.seed))
    chosen = {name: getattr(options, name) for name in ("episodes", "which", "envs", "seed", "explore", "trust")}
    outcome = evaluate(run_dir, policies=policies, env_fn=env_fn, **chosen)
    Console(width=None if sys.stdout.isatty() else WIDTH).print(outcome)
    if options.video:
        sys.stdout.write(f"video in {options.video}\n")
    return 0
