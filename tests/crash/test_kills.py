"""Whoever is killed at any moment, others go on: in C, and with processes that Python starts in each of its ways.

What these do, and what they check, is in csrc/test/kill_cycles.c and kills.py. The suite kills a few of each;

    python tests/long.py kills core|spawn|forkserver|fork 1000

goes through that many cycles, and ends with what was found in them.
"""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from core import CORE, SUPPORT, build, counted, python, run

pytestmark = pytest.mark.long
PROGRAM = SUPPORT / "kills.py"


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CORE, "kill_cycles", tmp_path_factory.mktemp("kills"))


def counts(done: subprocess.CompletedProcess[str], status: int = 0) -> Counter[str]:
    assert done.returncode == status, done.stdout + done.stderr
    return counted(done)


def test_killed_c_processes_leave_whole_rows_and_free_lanes(core: Path) -> None:
    """Also inside an append, asleep, before they have the lane, and nearly all at once."""
    tally = counts(run([core, "--cycles", "600"]))
    assert tally["kills"] > tally["cycles"] == 600
    assert min(tally[phase] for phase in ("starting", "inside", "waiting")) > 0
    assert tally["witnessed"] > 0


@pytest.mark.parametrize("control", ["--lower-reserved", "--no-validation"])
def test_a_broken_rule_of_takeover_tears_rows(core: Path, control: str) -> None:
    """The positive controls of the test above: a successor lowers reserved, or nobody validates."""
    assert counts(run([core, "--cycles", "20000", "--until-torn", control]), status=1)["torn"] > 0


@pytest.mark.parametrize(("method", "kills"), [("spawn", 8), ("forkserver", 8), ("fork", 80)])
def test_killed_python_processes_stop_nobody(method: str, kills: int) -> None:
    """Python processes killed at any moment stop nobody and leave nothing, also inside an add to many lanes."""
    tally = counts(python(PROGRAM, method, kills))
    assert tally["kills"] >= kills
    assert tally["rows"] > 0
    assert tally["add_vector_working"] + tally["add_vector_inside"] > kills // 20  # of some 15, half die at work


def test_survivors_that_do_not_validate_see_torn_rows() -> None:
    """The positive control: the same processes, and a sampler that believes whatever it copied."""
    assert counts(python(PROGRAM, "fork", 2000, "trust"), status=1)["torn"] > 0


def main(what: str, cycles: int) -> int:
    if what != "core":
        return subprocess.run([sys.executable, "-W", "error", PROGRAM, what, str(cycles)]).returncode
    with tempfile.TemporaryDirectory() as folder:
        return subprocess.run([build(CORE, "kill_cycles", Path(folder)), "--cycles", str(cycles)]).returncode
