"""`marlcore export`: writes a run's policy as an ONNX or TorchScript program."""

import os
import sys
from dataclasses import dataclass
from typing import Annotated

import tyro

from ..evaluation import load_policy
from .options import CommandLine


@dataclass(frozen=True)
class ExportOptions:
    """Write a run's greedy policy as a program for other runtimes; print its inputs.

    The command executes code that the run's directory holds; see docs/security.md.
    """

    run_dir: tyro.conf.Positional[Annotated[str, tyro.conf.arg(metavar="RUN")]]
    """Directory of the run."""
    policy: str
    """Name of the policy, or of one of its agents."""
    file: str
    """The file to write: .onnx, or .pt for TorchScript."""
    which: str = "last"
    """The checkpoint: last; best, by the run's evaluations; or the step of a kept checkpoint."""
    trust: bool = False
    """Execute the code of a run's directory that another user could have changed."""
    weights_only: bool = False
    """Execute no code of the run's directory; possible only for policies of built-in algorithms."""


def main(arguments: list[str]) -> int:
    sys.path.append(os.getcwd())  # for modules of the run's algorithms
    options = CommandLine("export", arguments).parse(ExportOptions, positional="run_dir")
    doors = {"trust": options.trust, "weights_only": options.weights_only}
    inputs = load_policy(options.run_dir, options.policy, options.which, **doors).export(options.file)
    for name, values in inputs.items():
        sys.stdout.write(f"{name}\t{values.dtype}\t{['B', *values.shape[1:]]}\n".replace("'", ""))
    return 0
