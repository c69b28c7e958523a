"""Durable replays and queues: killed at any moment, and cut off from power, they hold what was promised.

What the processes and the model machine do, and what is checked, is in durable_kills.py, queue_kills.py and
power_cuts.py;

    python tests/long.py durability kills 10000
    python tests/long.py durability queues 10000
    python tests/long.py durability cuts 100000

end with what was found in these cycles or cuts.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from core import CORE, SUPPORT, build_crash_points, counted
from preloaded import Play, preloaded

pytestmark = pytest.mark.long
KILLS, QUEUES, CUTS = (SUPPORT / f"{name}.py" for name in ("durable_kills", "queue_kills", "power_cuts"))
BROKEN = [
    "marks_before_rows", "promises_before_the_disk", "one_place", "no_checksum", "no_boot", "no_promise",
    "pledges_forgotten", "pledges_in_memory_alone", "enters_before_the_end", "lowers_beside_writers",
    "pledges_beyond_room", "promises_beyond_room",
]  # fmt: skip


def build(folder: Path) -> Path:
    return build_crash_points(CORE, folder, "power_cuts", ["-Dmsync=mc_point_msync"])


@pytest.fixture(scope="module")
def kills() -> Iterator[Play]:
    with preloaded(KILLS) as play:
        yield play


@pytest.fixture(scope="module")
def queues() -> Iterator[Play]:
    with preloaded(QUEUES) as play:
        yield play


@pytest.fixture(scope="module")
def cuts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    with preloaded(CUTS, build(tmp_path_factory.mktemp("core"))) as play:
        yield play


def test_no_row_is_lost_when_all_processes_are_killed(kills: Play, tmp_path: Path) -> None:
    done = kills(tmp_path, 40)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = counted(done)
    assert counts["kills"] == 4 * counts["cycles"] == 160
    assert counts["rows"] > 6_000
    assert min(counts["resumed"], counts["reboots"]) > 0


def test_rows_that_are_cut_although_the_machine_ran_on_are_missed(kills: Play, tmp_path: Path) -> None:
    """The positive control of the test above."""
    assert counted(kills(tmp_path, 200, "cut"))["lost"] > 0


def test_each_row_of_a_queue_is_learned_from_once_when_all_processes_are_killed(queues: Play, tmp_path: Path) -> None:
    done = queues(tmp_path, 40)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = counted(done)
    assert counts["kills"] == 3 * counts["cycles"] >= 120
    assert min(counts["learned"], counts["cuts"]) > 0


@pytest.mark.parametrize("rule", ["no_state", "commit_before_saving", "released_by_reading"])
def test_a_learner_that_breaks_a_rule_learns_from_rows_twice_or_misses_some(
    queues: Play, tmp_path: Path, rule: str
) -> None:
    counts = counted(queues(tmp_path, 60, rule))
    assert counts["twice"] + counts["missed"] > 0


def test_what_a_power_cut_leaves_is_whole_up_to_the_watermark(cuts: Play, tmp_path: Path) -> None:
    done = cuts(tmp_path, 2000)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = counted(done)
    assert counts["cuts"] >= 2000
    assert min(counts["rows"], counts["cut"], counts["overwritten"]) > 1000


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_found_out(rule: str, cuts: Play, tmp_path: Path) -> None:
    done = cuts(tmp_path, 20_000, rule)  # at most: it ends with the first fault
    assert done.returncode == 1, done.stdout + done.stderr


def main(what: str, count: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = [CUTS, build(folder), folder] if what == "cuts" else [KILLS if what == "kills" else QUEUES, folder]
        return subprocess.run([sys.executable, "-W", "error", *map(str, program), str(count)]).returncode
