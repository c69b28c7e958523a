"""Wake-ups between processes: whoever waits sleeps, and none sleeps on when there is what it waits for.

Over so many hand-offs, then the controls: python tests/long.py wakeups 10000000
"""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from core import CORE, build, counted, mutants, print_counts, run

pytestmark = pytest.mark.long
FORMS = {
    "in turns": "",
    "in turns, pauses": "--pause 4096",
    "in turns, 2 readers": "--readers 2 --pause 256",
    "in bursts": "--ahead 8 --pause 4096",
    "in bursts, 2 readers": "--ahead 8 --readers 2 --pause 1024",
    "in lumps": "--ahead 8 --lump 4 --pause 1024",
    "in lumps, 2 readers": "--ahead 16 --lump 9 --readers 2 --pause 256",
}
"""Arguments of csrc/test/handoffs.c."""
CONTROL = "--pause 4096 --handoffs 1000000000 --until-lost"

COMMIT = "    mc_lane_commit(lane, first, n);\n"
NOTIFY = "    mc_lane_notify(lane, n);\n"
RACY = ["woken_but_the_event_stays", "the_event_is_read_again_before_the_sleep"]
BROKEN = [
    mutants.Mutant(
        "nobody_is_woken",
        (("futex.c", "    syscall(SYS_futex, &e->event, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);\n", ""),),
        ("handoffs",),
    ),
    mutants.Mutant(
        "notified_before_the_row_is_committed", (("lane.c", f"{COMMIT}{NOTIFY}", f"{NOTIFY}{COMMIT}"),), ("handoffs",)
    ),
    *(mutant for mutant in mutants.MUTANTS if mutant.name in RACY),
]
"""Those whose lost wake-ups show on any machine. The second does always what a writer without its fence may do."""


def hand_over(handoffs: Path, form: str, times: int) -> Counter[str]:
    """Makes hand-offs, `times` in all; in each, the other side ends a wait."""
    return counted(run([handoffs, *FORMS[form].split(), "--handoffs", str(times)], timeout=3600), "lost")


def hand_over_broken(mutant: mutants.Mutant, folder: Path) -> Counter[str]:
    handoffs = build(mutants.mutate(mutant, folder), "handoffs", folder)
    return counted(run([handoffs, *CONTROL.split()], timeout=3600), "lost")


@pytest.fixture(scope="module")
def handoffs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(CORE, "handoffs", tmp_path_factory.mktemp("handoffs"))


@pytest.mark.parametrize("form", FORMS)
def test_no_wake_up_is_lost(handoffs: Path, form: str) -> None:
    """No wait lasts until its time is up when what it waited for was done and notified."""
    counts = hand_over(handoffs, form, 20_000)
    assert counts["lost"] == 0
    assert counts["handoffs"] >= 20_000
    assert counts["sleeps"] > 0


@pytest.mark.parametrize("mutant", BROKEN, ids=lambda mutant: mutant.name)
def test_a_core_that_breaks_a_rule_of_waking_loses_wake_ups(tmp_path: Path, mutant: mutants.Mutant) -> None:
    """The positive control; the model checker has the rules that this machine's processes do not need."""
    assert hand_over_broken(mutant, tmp_path)["lost"] > 0


def main(times: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        handoffs = build(CORE, "handoffs", Path(folder))
        counts = {form: hand_over(handoffs, form, -(-times // len(FORMS))) for form in FORMS}
        counts["all"] = sum(counts.values(), Counter())
        controls = {mutant.name: hand_over_broken(mutant, Path(folder)) for mutant in BROKEN}
    print_counts(("rows", "handoffs", "sleeps", "spurious", "idle", "lost"), counts | controls)
    return int(counts["all"]["lost"] > 0 or any(counts["lost"] == 0 for counts in controls.values()))
