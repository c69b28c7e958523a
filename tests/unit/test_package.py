"""Importing, building and installing marlcore."""

import os
import pydoc
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import marlcore
import marlcore.meta
import marlcore.planning
import marlcore.run
import marlcore.testing
from marlcore.lazy import is_installed

ROOT = Path(__file__).parents[2]
of_training = pytest.mark.skipif(not is_installed("train"), reason="needs marlcore[train]")


def test_importing_marlcore_imports_no_other_package() -> None:
    """So the import takes milliseconds; torch, Numba and NumPy are imported by the first name that needs them."""
    code = """
import sys
before = {*sys.modules}
import marlcore
print(*{name.partition(".")[0] for name in {*sys.modules} - before} - {*sys.stdlib_module_names})
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True).split() == ["marlcore"]


@pytest.mark.parametrize(
    ("before", "says"),
    [
        ("sys._is_gil_enabled = lambda: False", "ImportError: marlcore: expected a Python with its global interpreter"),
        ("sys.modules['_cffi_backend'] = None", "ModuleNotFoundError: marlcore needs cffi: python -m pip install cffi"),
        ("os.environ['NUMBA_DISABLE_JIT'] = '1'", "ImportError: NUMBA_DISABLE_JIT: expected 0, since no kernel can "),
    ],
)
def test_a_python_without_what_marlcore_needs_is_told_so(before: str, says: str) -> None:
    code = f"import os, sys; {before}; import marlcore; marlcore.ReplayBuffer"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].startswith(says)


def test_a_free_threaded_python_is_refused_before_a_build() -> None:
    """Wheels have no tag that it takes, so pip builds there."""
    code = "import sysconfig as s; s.get_config_vars()['Py_GIL_DISABLED'] = 1; import runpy; runpy.run_path('setup.py')"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 1
    says = "marlcore: expected a Python with its global interpreter lock, got a free-threaded one"
    assert done.stderr.splitlines() == [says]


def test_every_public_name_can_be_imported() -> None:
    further = [marlcore.testing, marlcore.run, marlcore.meta] if is_installed("train") else []
    for room in (marlcore, marlcore.planning, *further):
        assert sorted(room.__all__) == dir(room)
        for name in room.__all__:
            shown = pydoc.render_doc(getattr(room, name))
            assert "_array_like" not in shown, f"help({name}) shows the parts of ArrayLike"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = marlcore.nothing


def test_the_core_has_few_names() -> None:
    core = (ROOT / "marlcore" / "__init__.pyi").read_text().partition("# Training")[0]
    assert len(re.findall(r"^from ", core, re.M)) <= 25


@of_training
def test_settings_are_found_without_importing_torch() -> None:
    names = "Algorithm Environment Trainer Config ActorConfig LearnerConfig ReplayConfig ExplorationConfig "
    names += "SupervisionConfig NamedEnvironment TreasureHunt"
    code = f"import sys, marlcore as mc\nfor name in {names.split()}: getattr(mc, name)\nprint('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
    assert marlcore.DQN().double and marlcore.IQN()


@of_training
@pytest.mark.long
def test_the_example_of_a_custom_algorithm_trains(tmp_path: Path) -> None:
    example = ROOT / "examples" / "custom_algorithm.py"
    assert len(example.read_text().splitlines()) < 80
    options = ["--env", "gymnasium:CartPole-v1", "--algo", "custom_algorithm:MyDQN", "--algorithm.target-every", "20"]
    small = ["--mode", "serial", "--total-steps", "1000", "--learner.warmup", "100", "--learner.device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-m", "marlcore", "train", *options, *small, "--run-dir", str(tmp_path / "run")],
        capture_output=True, text=True, cwd=example.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.search(r"updates: agent_0 [1-9]", done.stdout)


def test_a_source_folder_without_its_core_is_one_line(tmp_path: Path) -> None:
    """Such as a checkout that was never built, which as the working directory hides an installed package."""
    package = ROOT / "marlcore"
    shutil.copytree(package, tmp_path / "marlcore", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    code = (  # the finder of an editable install would find the core that this folder lacks
        "import runpy, sys; sys.argv[1:] = ['gc'];"
        "sys.meta_path = [it for it in sys.meta_path if 'editable' not in getattr(it, '__module__', '')];"
        "runpy.run_module('marlcore', run_name='__main__', alter_sys=True)"
    )
    core = f"compiled core: expected one in {tmp_path / 'marlcore'}, got none: run `python -m pip install -e .`"
    for before, says in (("", core), ("import sys; sys.modules['_cffi_backend'] = None;", "marlcore needs cffi: ")):
        done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 2 and done.stderr.startswith(f"marlcore: {says}")
        assert len(done.stderr.splitlines()) == 1


def files_of(folder: str) -> set[Path]:
    """The files of a folder, without those that builds and runs wrote."""
    files = {path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    files -= {ROOT / "marlcore" / "_core.c", *(ROOT / "docs" / "reference").rglob("*")}
    return {path.relative_to(ROOT) for path in files if path.suffix != ".so"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package as setuptools installs it, `lib`, and with its metadata, `marlcore.egg-info`."""
    folder = tmp_path_factory.mktemp("built")
    command = ["setup.py", "-q", "egg_info", "--egg-base", folder, "build_py", "--build-lib", folder / "lib"]
    done = subprocess.run([sys.executable, *command], check=True, cwd=ROOT, capture_output=True, text=True)
    assert "Package would be ignored" not in done.stderr
    return folder


def test_every_file_of_the_package_is_installed_and_no_other(built: Path) -> None:
    """This includes stubs, from which packages read their names, and data that is read at run time."""
    files = files_of("marlcore")
    assert {Path("marlcore/py.typed"), Path("marlcore/__init__.pyi")} <= files
    assert files == {path.relative_to(built / "lib") for path in (built / "lib").rglob("*") if path.is_file()}


def test_the_source_distribution_has_its_tests_files(built: Path) -> None:
    listed = set((built / "marlcore.egg-info" / "SOURCES.txt").read_text().splitlines())
    folders = ["bench", "csrc", "docs", "examples", "marlcore", "tests"]
    wanted = {str(file) for folder in folders for file in files_of(folder)}
    wanted |= {"CHANGELOG.md", "CITATION.cff", "LICENSE", "README.md", "SECURITY.md", "constraints.txt"}
    assert sorted(wanted - listed) == []


def test_the_package_and_its_citation_name_one_version() -> None:
    (declared,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert cited == declared == marlcore.__version__


def test_the_constraints_pin_every_package_once_for_each_python(built: Path) -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    needs = (built / "marlcore.egg-info" / "requires.txt").read_text().splitlines()
    needed = {canonicalize_name(Requirement(line).name) for line in needs if line and line[0] != "["}
    needed -= {"marlcore", "cpprb"}  # the extra pins cpprb
    for python in ["3.10.0", "3.11.0", "3.11.5", "3.12.0", "3.13.0", "3.14.0"]:
        environment = {"python_version": python.rpartition(".")[0], "python_full_version": python}
        pins = [pin for pin in map(Requirement, lines) if not pin.marker or pin.marker.evaluate(environment)]
        counts = Counter(canonicalize_name(pin.name) for pin in pins)
        assert [name for name in counts if counts[name] > 1] == [], python
        assert sorted(needed - counts.keys()) == [], python


@pytest.mark.long
def test_the_command_for_benchmarks_prints_their_table() -> None:
    (command,) = re.findall("^python (-m pytest .* bench) +#", (ROOT / "CONTRIBUTING.md").read_text(), re.M)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, *command.split(), "-k", "test_row and publish and marlcore"],
        cwd=ROOT, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0 and "Name (time in " in done.stdout, done.stdout + done.stderr
