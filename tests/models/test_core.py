"""The C core without Python: its own tests, and threads that race for a lane.

The race over many reads that the lane calls whole, then its controls: python tests/long.py core 1000000000
"""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import pytest
from core import CORE, build, counted, mutants, print_counts, run
from tiers import long_but

SANITIZERS = ["-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
OPAQUE = ["-O1", "-g1", "-fsanitize=thread", "-Wno-tsan"]  # it knows no fences; the compiler would warn of them
THREADS = [*OPAQUE, "-DMC_OPAQUE_BYTES=UINT64_MAX"]  # rows race on purpose: word by word, each of them atomic
MEMCHECK = ["valgrind", "-q", "--error-exitcode=99", "--leak-check=full"]

BUILDS = {
    "optimized": ([], []), "sanitized": (SANITIZERS, []), "threads": (THREADS, []),
    "valgrind": ([], MEMCHECK),  # the same program
}  # fmt: skip
"""Flags of the compiler, and what runs the program."""


PROGRAMS = [*product(["test_core", "test_transitions"], BUILDS), *product(["test_dense"], ["optimized", "sanitized"])]


@pytest.mark.long
@pytest.mark.parametrize(("name", "kind"), PROGRAMS)
def test_c_tests_pass(name: str, kind: str, tmp_path: Path) -> None:
    """Each behaviour of the core in one thread, and wake-ups between two."""
    flags, runner = BUILDS[kind]
    if runner and shutil.which(runner[0]) is None:
        pytest.skip(f"{runner[0]} is not installed (Debian: {runner[0]})")
    done = run([*runner, build(CORE, name, tmp_path, flags)])
    assert done.returncode == 0, done.stdout + done.stderr
    declared = re.findall(r"TEST\((\w+)\)", (CORE / "test" / f"{name}.c").read_text())
    assert done.stdout.split() == declared and len(declared) > 8


@pytest.fixture(scope="module")
def stress(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CORE, "stress_lane", tmp_path_factory.mktemp("stress"))


STRESSES = {
    "small_rows": "--reads 10000000 --row 40 --capacity 4",
    "rows_of_words": "--reads 2000000 --row 248 --capacity 2",
    "frames": "--reads 200000 --row 40 --frame 7056 --capacity 4",
    "frames_of_odd_size_in_appends": "--reads 200000 --row 40 --frame 567 --capacity 8 --append 3",
    "snapshot": "--reads 5000 --row 262144 --capacity 1 --newest",
    "double_buffer": "--reads 5000 --row 262144 --capacity 2 --newest",
    "triple_buffer": "--reads 5000 --row 262144 --capacity 3 --newest",
}
UNVALIDATED = ["small_rows", "frames", "double_buffer", "triple_buffer"]
BROKEN = [mutant for mutant in mutants.MUTANTS if "stress" in mutant.checks]


def raced(done: subprocess.CompletedProcess[str]) -> Counter[str]:
    counts = counted(done, "torn")
    assert counts["accepted"] + counts["lapped"] == counts["reads"]
    return counts


def race(stress: Path, name: str) -> Counter[str]:
    """Two readers take every row that the lane calls whole, while its writer overwrites them."""
    return raced(run([stress, *STRESSES[name].split()]))


def race_unvalidated(stress: Path, name: str) -> Counter[str]:
    """Races readers without validation until one sees a torn row."""
    patient = re.sub(r"--reads (\d+)", r"--reads \g<1>000", STRESSES[name])
    return raced(run([stress, *patient.split(), "--no-validation", "--until-torn"]))


def race_broken(mutant: mutants.Mutant, folder: Path) -> Counter[str]:
    """The same until a torn row was accepted, in a core that breaks a rule."""
    stress = mutants.build_stress(mutants.mutate(mutant, folder), folder / f"{mutant.name}.stress")
    return raced(run([stress, *mutants.STRESS]))


@pytest.mark.parametrize("name", long_but(["frames", "double_buffer"], STRESSES))
def test_readers_lapped_by_a_writer_accept_no_torn_row(stress: Path, name: str) -> None:
    counts = race(stress, name)
    assert counts["torn"] == 0 and counts["accepted"] > 0
    assert counts["reads"] >= int(STRESSES[name].split()[1]) * 0.99


@pytest.mark.parametrize("name", UNVALIDATED)
def test_readers_that_do_not_validate_accept_torn_rows(stress: Path, name: str) -> None:
    """The positive control: without validation the same race is seen, also with two and three slots."""
    assert race_unvalidated(stress, name)["torn"] > 0


@pytest.mark.long
@pytest.mark.parametrize("mutant", BROKEN, ids=[mutant.name for mutant in BROKEN])
def test_readers_of_a_lane_that_breaks_a_rule_accept_torn_rows(tmp_path: Path, mutant: mutants.Mutant) -> None:
    """The positive control of the validation itself."""
    assert race_broken(mutant, tmp_path)["torn"] > 0


RACES = {
    "small_rows": "--reads 200000 --row 40 --capacity 4",
    "frames_in_appends": "--reads 20000 --row 40 --frame 567 --capacity 8 --append 3",
    "double_buffer": "--reads 500 --row 65536 --capacity 2 --newest",
}


@pytest.mark.long
@pytest.mark.parametrize("arguments", RACES.values(), ids=RACES.keys())
def test_a_thread_sanitizer_finds_no_race(tmp_path: Path, arguments: str) -> None:
    """Every word that both touch is atomic, and what readers check after copying is ordered by more than luck."""
    done = run([build(CORE, "stress_lane", tmp_path, THREADS), *arguments.split()])
    assert done.returncode == 0, done.stdout + done.stderr
    assert raced(done)["torn"] == 0


@pytest.mark.long
def test_a_thread_sanitizer_finds_an_undeclared_copy(tmp_path: Path) -> None:
    """The positive control: the same rows, copied by the C library, are a race."""
    stress = build(CORE, "stress_lane", tmp_path, OPAQUE)
    done = run([stress, *RACES["frames_in_appends"].split()])
    assert done.returncode == 66 and "data race" in done.stderr, done.stdout + done.stderr


MISTAKEN = {
    "stress_lane": ["--read 1", "--append 5 --capacity 4"],
    "handoffs": ["--handoff 1", "--ahead 65", "--ahead 4 --lump 4"],
    "kill_cycles": ["--cycle 1"],
}


@pytest.mark.parametrize("name", long_but(["stress_lane"], MISTAKEN))
def test_a_program_refuses_arguments_that_it_does_not_know(name: str, tmp_path: Path) -> None:
    """A misspelt option would otherwise weaken a test in silence."""
    program = build(CORE, name, tmp_path)
    assert [run([program, *mistaken.split()]).returncode for mistaken in MISTAKEN[name]] == [2] * len(MISTAKEN[name])


def main(accepted: int) -> int:
    """Repeats races of every kind until `accepted` reads passed, then runs the controls; 1 when one fails."""
    with tempfile.TemporaryDirectory() as folder:
        stress = build(CORE, "stress_lane", Path(folder))
        counts = {name: Counter[str]() for name in STRESSES}
        while sum(tally["accepted"] for tally in counts.values()) < accepted:
            for name, tally in counts.items():
                tally += race(stress, name)
        counts["all"] = sum(counts.values(), Counter())
        controls = {f"{name}, not validated": race_unvalidated(stress, name) for name in UNVALIDATED}
        controls |= {mutant.name: race_broken(mutant, Path(folder)) for mutant in BROKEN}
    print_counts(("appended", "reads", "accepted", "lapped", "torn"), counts | controls)
    return int(counts["all"]["torn"] > 0 or any(tally["torn"] == 0 for tally in controls.values()))
