"""Both commands of the README, one after the other in one environment: the first trains, the second is editable."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRAIN = "train --mode serial --total-steps 300 --learner.device cpu --algo dqn --learner.warmup 100"
FILE = "import marlcore; print(marlcore.TransitionSpec and marlcore.__file__)"


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[str], Path]:
    """installed(hook) installs a copy of the sources as that hook of the build backend makes them, in place of others.

    Returns the folder site-packages of an environment which finds everything else where this Python does.
    """
    source = tmp_path / "source"
    for folder in ("csrc", "marlcore"):
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for file in ("LICENSE", "MANIFEST.in", "README.md", "pyproject.toml", "setup.py"):
        shutil.copy(ROOT / file, source)
    venv.create(tmp_path / "venv", symlinks=True)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))

    def install(hook: str) -> Path:
        build = f"from setuptools import build_meta; print(build_meta.{hook}('{tmp_path}'))"
        sooner = {**os.environ, "MARLCORE_CFLAGS": "-O0 -g0"}
        built = subprocess.check_output([sys.executable, "-c", build], cwd=source, text=True, env=sooner)
        pip(tmp_path, "install", "--no-index", "--no-deps", "--force-reinstall", tmp_path / built.splitlines()[-1])
        return site

    return install


def pip(folder: Path, command: str, *arguments: object) -> None:
    runs = [sys.executable, "-m", "pip", "--python", folder / "venv", "--quiet", command, *arguments]
    subprocess.run(list(map(str, runs)), check=True, cwd=folder, env=environment(folder))


def environment(folder: Path) -> dict[str, str]:
    """Python writes its own files beside the sources, as it does by default."""
    cleared = ("NUMBA_CACHE_DIR", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONPYCACHEPREFIX")
    kept = {name: value for name, value in os.environ.items() if name not in cleared}
    return {**kept, "XDG_CACHE_HOME": str(folder / "cache"), "NUMBA_OPT": "1"}  # which compiles sooner


@pytest.mark.long
def test_an_installation_that_has_trained_leaves_nothing_behind(tmp_path: Path, installed) -> None:
    def python(*arguments: str) -> str:
        command = [tmp_path / "venv" / "bin" / "python", *arguments]
        return subprocess.check_output(command, cwd=tmp_path, env=environment(tmp_path), text=True).strip()

    site = installed("build_wheel")
    before = sorted(site.rglob("*"))
    python("-m", "marlcore", *TRAIN.split(), "--run-dir", "run")
    assert (tmp_path / "run" / "metrics.csv").exists()
    assert sorted(site.rglob("*")) == before
    assert python("-c", FILE) == str(site / "marlcore" / "__init__.py")
    installed("build_editable")
    assert not (site / "marlcore").exists()
    assert python("-c", FILE) == str(tmp_path / "source" / "marlcore" / "__init__.py")
    (stale,) = (line for line in python("-m", "marlcore", "gc", "--dry-run").splitlines() if str(tmp_path) in line)
    assert stale.startswith("orphaned\t")
    pip(tmp_path, "uninstall", "--yes", "marlcore")
    assert [path.name for path in site.iterdir()] == ["others.pth"]
