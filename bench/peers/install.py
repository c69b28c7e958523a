"""Peers in environments of their own: `python -m bench.peers.install benchmarl`, `sample-factory` or `sorrel`.

BenchMARL and Sample Factory need older packages. sorrel 1.6.0 needs Python 3.12 and 6 GB; beside it are the packages of
marlcore[train], and marlcore itself is found by PYTHONPATH, so that this checkout is what runs.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
WITH_MARLCORE = {
    **os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
}  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and the oldest Python that its packages take."""

    name: str
    packages: tuple[str, ...]
    least: tuple[int, int] = (3, 10)

    @property
    def python(self) -> Path:
        return CACHE / "marlcore-bench" / self.name / "bin" / "python"

    @property
    def missing(self) -> str:
        """The command that installs it; "" where it is installed."""
        return "" if self.python.exists() else f"`python -m bench.peers.install {self.name}` installs it"

    def install(self) -> None:
        if self.missing:
            python = next(filter(self._is_new_enough, _interpreters()), None)
            if python is None:
                sys.exit(f"{self.name} needs Python {'.'.join(map(str, self.least))} or newer, and none was found")
            subprocess.run([python, "-m", "venv", self.python.parents[1]], check=True)
        subprocess.run([self.python, "-m", "pip", "install", *self.packages], check=True)
        sys.stdout.write(f"installed in {self.python.parents[1]}\n")

    def _is_new_enough(self, python: str) -> bool:
        asked = [python, "-c", f"import sys; sys.exit(sys.version_info < {self.least})"]
        return subprocess.run(asked, capture_output=True).returncode == 0


OF_MARLCORE = [
    requirement.partition(";")[0]
    for requirement in requires("marlcore") or []
    if "extra" not in requirement or 'extra == "train"' in requirement
]
BENCHMARL = Environment(
    "benchmarl",
    (
        "benchmarl==1.5.1",
        "torchrl==0.10.1",
        "tensordict==0.10.0",
        "torch==2.13.0",
        "pettingzoo==1.24.3",
        "pygame==2.6.1",
    ),
)
SAMPLE_FACTORY = Environment("sample-factory", ("sample-factory==2.1.1", "gymnasium==0.29.1", "numpy==1.26.4"))
SORREL = Environment(
    "sorrel", ("sorrel==1.6.0", "hypothesis", "pytest-benchmark", "pytest-xdist", *OF_MARLCORE), (3, 12)
)


def _interpreters() -> list[str]:
    """Python programs that may be new enough, the present one first."""
    programs = [sys.executable, *(shutil.which(f"python3.{minor}") or "" for minor in range(10, 15))]
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    return [path for path in (*programs, *map(str, sorted(versions.glob("3.*/bin/python")))) if path]


def appo_rate() -> float:
    """Frames a second of Sample Factory's run, as it counts them."""
    command = [SAMPLE_FACTORY.python, Path(__file__).with_name("sample_factory_cartpole.py")]
    done = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return float(re.findall(r"FPS: ([0-9.]+)", done.stdout)[-1])


if __name__ == "__main__":
    environments = {environment.name: environment for environment in (BENCHMARL, SAMPLE_FACTORY, SORREL)}
    parser = argparse.ArgumentParser(prog="python -m bench.peers.install", description=__doc__)
    parser.add_argument("peer", choices=environments)
    peer = parser.parse_args().peer
    environments[peer].install()
    if peer == SORREL.name:
        tests = "-m pytest --long tests/runs/test_sorrel_itself.py tests/runs/test_gallery.py -k sorrel"
        sys.stdout.write(f"tests: PYTHONPATH={ROOT} {SORREL.python} {tests}\n")
