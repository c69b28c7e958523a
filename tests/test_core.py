"""The C core without Python: its own tests, threads that race for a lane, a model checker, and mutants."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

CORE = Path(__file__).parent.parent / "csrc"
SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


mutants = _load(CORE / "test" / "mutants.py")

needs_relacy = pytest.mark.skipif(
    not mutants.RELACY.exists(), reason="the model checker Relacy is not installed (Debian: relacy-dev)"
)


def run(command: Sequence[str | Path], timeout: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=timeout)


@pytest.mark.parametrize("flags", [["-O2"], SANITIZERS], ids=["optimized", "sanitized"])
@pytest.mark.parametrize("name", ["test_core", "test_transitions"])
def test_c_tests_pass(name: str, flags: list[str], tmp_path: Path) -> None:
    """Each behaviour of the core in one thread, and wake-ups between two."""
    binary = tmp_path / name
    sources = [CORE / "test" / f"{name}.c", *sorted(CORE.glob("*.c"))]
    mutants.compile_with(
        ["gcc", *mutants.CFLAGS, *flags, f"-I{CORE}", *map(str, sources), "-o", str(binary), "-pthread", "-lm"]
    )
    done = run([binary])
    assert done.returncode == 0, done.stdout + done.stderr
    declared = re.findall(r"TEST\((\w+)\)", sources[0].read_text())
    assert done.stdout.split() == declared and len(declared) > 10


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mutants.build_stress(CORE, tmp_path_factory.mktemp("stress") / "stress_lane")


def counts(done: subprocess.CompletedProcess[str]) -> dict[str, float]:
    words = done.stdout.split()
    return {name: float(value) for name, value in zip(words[::2], words[1::2], strict=True)}


STRESSES = {
    "small_rows": "--reads 10000000 --row 40 --capacity 4",
    "rows_of_words": "--reads 2000000 --row 248 --capacity 2",
    "frames": "--reads 200000 --row 40 --frame 7056 --capacity 4",
    "frames_of_odd_size_in_appends": "--reads 200000 --row 40 --frame 567 --capacity 8 --append 3",
    "snapshot": "--reads 5000 --row 262144 --capacity 1 --newest",
    "double_buffer": "--reads 5000 --row 262144 --capacity 2 --newest",
    "triple_buffer": "--reads 5000 --row 262144 --capacity 3 --newest",
}


@pytest.mark.parametrize("arguments", STRESSES.values(), ids=STRESSES.keys())
def test_readers_lapped_by_a_writer_accept_no_torn_row(stress: Path, arguments: str) -> None:
    """Two readers take every row that the lane calls whole, while its writer overwrites them."""
    done = run([stress, *arguments.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    found = counts(done)
    assert found["torn"] == 0 and found["accepted"] > 0
    assert found["accepted"] + found["lapped"] == found["reads"] >= int(arguments.split()[1]) * 0.99


@pytest.mark.parametrize("name", ["small_rows", "frames", "double_buffer", "triple_buffer"])
def test_readers_that_do_not_validate_accept_torn_rows(stress: Path, name: str) -> None:
    """The positive control: without validation the same race is seen, also with two and three slots."""
    patient = re.sub(r"--reads (\d+)", r"--reads \g<1>000", STRESSES[name])
    done = run([stress, *patient.split(), "--no-validation", "--until-torn"])
    assert done.returncode == 1 and counts(done)["torn"] > 0, done.stdout + done.stderr


def test_stress_refuses_arguments_that_it_does_not_know(stress: Path) -> None:
    """A misspelt option would otherwise weaken the test in silence."""
    assert run([stress, "--read", "1"]).returncode == 2
    assert run([stress, "--append", "5", "--capacity", "4"]).returncode == 2


@needs_relacy
def test_no_execution_of_the_model_fails(tmp_path: Path) -> None:
    """All interleavings and weakly ordered reads of a small lane, and many random ones of what is larger."""
    done = run([mutants.build_model(CORE, tmp_path / "model", "-O1")])
    assert done.returncode == 0, done.stdout + done.stderr
    executions = {name: int(n) for name, n in re.findall(r"(\w+): (\d+) executions, no failure", done.stdout)}
    assert executions.keys() >= {check for m in mutants.MUTANTS for check in m.checks} - {"stress"}
    assert executions["sample"] > 1_000_000 and min(executions.values()) > 10_000


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[dict[str, tuple[bool, str]]]]:
    """All mutants, built and examined two at a time."""
    folder = tmp_path_factory.mktemp("mutants")
    with ThreadPoolExecutor(max_workers=2) as pool:
        return {mutant.name: pool.submit(mutants.examine, mutant, folder) for mutant in mutants.MUTANTS}


@needs_relacy
@pytest.mark.parametrize("name", [mutant.name for mutant in mutants.MUTANTS])
def test_a_core_that_breaks_a_rule_is_found_out(
    verdicts: dict[str, Future[dict[str, tuple[bool, str]]]], name: str
) -> None:
    """Each rule of the protocol is needed: without it the model, or the race of threads, shows a torn row."""
    for check, (found, said) in verdicts[name].result().items():
        assert found, f"{check} did not find the mutant out: {said}"


def test_each_mutant_changes_the_core_in_one_place(tmp_path: Path) -> None:
    """The core moved on when this fails: its mutants must follow, on a machine without Relacy too."""
    for mutant in mutants.MUTANTS:
        assert mutants.mutate(mutant, tmp_path).is_dir()
