"""The C core without Python: its own tests, and threads that race for a lane."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from core import CORE, mutants, run

SANITIZERS = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
OPAQUE = ["-O1", "-g", "-fsanitize=thread", "-Wno-tsan"]  # it knows no fences, of which the compiler would warn
THREADS = [*OPAQUE, "-DMC_OPAQUE_BYTES=UINT64_MAX"]  # rows race on purpose: word by word, each of them atomic
MEMCHECK = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full"]

BUILDS = {
    "optimized": (["-O2"], []),
    "sanitized": (SANITIZERS, []),
    "threads": (THREADS, []),
    "valgrind": (["-O1", "-g"], MEMCHECK),
}
"""Flags of the compiler, and what runs the program."""


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("name", ["test_core", "test_transitions"])
def test_c_tests_pass(name: str, build: str, tmp_path: Path) -> None:
    """Each behaviour of the core in one thread, and wake-ups between two."""
    flags, runner = BUILDS[build]
    if runner and shutil.which(runner[0]) is None:
        pytest.skip(f"{runner[0]} is not installed (Debian: {runner[0]})")
    binary = tmp_path / name
    sources = [CORE / "test" / f"{name}.c", *sorted(CORE.glob("*.c"))]
    mutants.compile_with(
        ["gcc", *mutants.CFLAGS, *flags, f"-I{CORE}", *map(str, sources), "-o", str(binary), "-pthread", "-lm"]
    )
    done = run([*runner, binary])
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


RACES = {
    "small_rows": "--reads 200000 --row 40 --capacity 4",
    "frames_in_appends": "--reads 20000 --row 40 --frame 567 --capacity 8 --append 3",
    "double_buffer": "--reads 500 --row 65536 --capacity 2 --newest",
}


@pytest.mark.parametrize("arguments", RACES.values(), ids=RACES.keys())
def test_a_thread_sanitizer_finds_no_race_between_a_writer_and_its_readers(tmp_path: Path, arguments: str) -> None:
    """Every word that both touch is atomic, and what readers check after copying is ordered by more than luck."""
    done = run([mutants.build_stress(CORE, tmp_path / "stress", THREADS), *arguments.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts(done)["torn"] == 0


def test_a_thread_sanitizer_that_is_not_told_of_the_opaque_copy_finds_it(tmp_path: Path) -> None:
    """The positive control: the same rows, copied by the C library, are a race."""
    stress = mutants.build_stress(CORE, tmp_path / "stress", OPAQUE)
    done = run([stress, *RACES["frames_in_appends"].split()])
    assert done.returncode == 66 and "data race" in done.stderr, done.stdout + done.stderr


def test_stress_refuses_arguments_that_it_does_not_know(stress: Path) -> None:
    """A misspelt option would otherwise weaken the test in silence."""
    assert run([stress, "--read", "1"]).returncode == 2
    assert run([stress, "--append", "5", "--capacity", "4"]).returncode == 2
