"""Peers in environments of their own: `python -m bench install NAME`; `--help` lists the names.

BenchMARL and Sample Factory need older packages. sorrel 1.6.0 (6 GB) and LeRobot need Python 3.12, Tianshou and
OpenSpiel 2.0.2 (2 GB) need 3.11. These four also need the packages of marlcore[train], and find this checkout's
marlcore by PYTHONPATH. `embed` has the codebases of `python -m bench embed` except LeRobot, with CleanRL's Gymnasium.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Any

from .. import ROOT
from ..machine import say

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
PATHS = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
WITH_MARLCORE = {**os.environ, "PYTHONPATH": os.pathsep.join(PATHS)}


@dataclass(frozen=True)
class Environment:
    """A virtual environment, its packages, and the oldest Python that they take."""

    name: str
    packages: str
    least: tuple[int, int] = (3, 10)
    others: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return CACHE / "marlcore-bench" / self.name / "bin" / "python"

    @property
    def missing(self) -> str:
        """The command that installs it; "" where it is installed."""
        return "" if self.python.exists() else f"`python -m bench install {self.name}` installs it"

    def install(self) -> None:
        if self.missing:
            newer = (f"python3.{minor}" for minor in range(self.least[1], 15))
            python = sys.executable if sys.version_info >= self.least else next(filter(shutil.which, newer), None)
            if python is None:
                sys.exit(f"{self.name} needs Python {'.'.join(map(str, self.least))} or newer on PATH, and none is")
            subprocess.run([python, "-m", "venv", self.python.parents[1]], check=True)
        subprocess.run([self.python, "-m", "pip", "install", *self.packages.split(), *self.others], check=True)
        say(f"installed in {self.python.parents[1]}")

    def run(self, *command: object, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """What a program of this environment prints in its last line, as JSON."""
        if self.missing:
            sys.exit(f"{self.name} is not installed: {self.missing}")
        words = map(str, (self.python, *command))
        done = subprocess.run([*words], env=env, stdout=subprocess.PIPE, text=True, check=True)
        return dict(json.loads(done.stdout.splitlines()[-1]))


OF_MARLCORE = tuple(
    requirement.partition(";")[0]
    for requirement in requires("marlcore") or []
    if "extra" not in requirement or 'extra == "train"' in requirement
)
OF_BENCHMARL = "benchmarl==1.5.1 torchrl==0.10.1 tensordict==0.10.0 torch==2.13.0 pettingzoo==1.24.3 pygame==2.6.1"
BENCHMARL = Environment("benchmarl", OF_BENCHMARL)
SAMPLE_FACTORY = Environment(
    "sample-factory", "sample-factory==2.1.1 gymnasium==0.29.1 numpy==1.26.4 torch==2.13.0 setuptools<81"
)
SB3 = Environment("sb3", "stable-baselines3==2.9.2 torch==2.13.0")
CLEANRL = Environment("cleanrl", "gymnasium==1.4.0 tyro==1.0.0 torch==2.13.0")
RLLIB = Environment("rllib", "ray[rllib]==2.60.0 torch==2.13.0", others=OF_MARLCORE)
RLOX = Environment("rlox", "rlox==1.2.0 gymnasium==1.4.0 torch==2.13.0")
JAX = Environment("jax", "jaxmarl==0.2.0 gymnax==0.0.9 optax distrax", (3, 11))
OF_PSRO = "chex cvxpy dm-haiku dm-tree ecos flax matplotlib networkx optax orbax-checkpoint rlax"  # it imports them all
SPIEL = Environment("openspiel", f"open_spiel==2.0.2 torch==2.13.0 {OF_PSRO}", (3, 11), OF_MARLCORE)
TESTED = "hypothesis pytest-benchmark pytest-xdist"
SORREL = Environment("sorrel", f"sorrel==1.6.0 {TESTED}", (3, 12), OF_MARLCORE)
TIANSHOU = Environment("tianshou", f"tianshou==2.0.1 pfrl==0.4.0 {TESTED}", (3, 11), OF_MARLCORE)
OF_HOSTS = "tianshou[eval]==2.0.1 pfrl==0.4.0 gymnasium==0.29.1 ale-py==0.10.1 opencv-python-headless<4.12 tyro flax"
OF_HOSTS += " optax sacred==0.8.7 setuptools<81 lbforaging tensorboard torch==2.13.0 numba cffi cloudpickle psutil"
OF_HOSTS += " numpy>=2,<2.4"  # NumPy 2.4 takes no array of one element as a number, as CleanRL's Rainbow hands it over
EMBED = Environment("embed", OF_HOSTS, (3, 11))
LEROBOT = Environment("lerobot", f"lerobot[dataset]==0.6.1 {TESTED}", (3, 12), OF_MARLCORE)

TESTS = {
    SORREL.name: "--long tests/runs/test_sorrel_itself.py tests/runs/test_gallery.py -k sorrel",
    TIANSHOU.name: "tests/unit/compat/test_compat_tianshou.py tests/unit/compat/test_recipes.py",
    LEROBOT.name: "--long tests/unit/compat/test_compat_lerobot.py",
}
ENVIRONMENTS = {
    each.name: each
    for each in (BENCHMARL, SAMPLE_FACTORY, SORREL, TIANSHOU, EMBED, LEROBOT, SB3, CLEANRL, RLLIB, RLOX, JAX, SPIEL)
}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("peer", choices=list(ENVIRONMENTS))


def main(options: argparse.Namespace) -> None:
    ENVIRONMENTS[options.peer].install()
    if options.peer in TESTS:
        say(f"tests: PYTHONPATH={ROOT} {ENVIRONMENTS[options.peer].python} -m pytest {TESTS[options.peer]}")
