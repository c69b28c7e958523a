"""Instructions of the hot calls against the stored counts; `python -m bench instructions --store` renews them."""

from pathlib import Path

import pytest
from core import mutants

from ..figures import load
from . import instructions

BEGINNING = "void mc_copy_in(uint8_t *row, const void *source, uint64_t size) {\n    const uint8_t *from = source;\n"
A_PASS = "    uint64_t sum = 0;\n    for (uint64_t i = 0; i < size; i++)\n        sum += from[i];\n"
A_PASS += "    if (sum == UINT64_MAX)\n        return;\n"
LONGER_COPY = mutants.Mutant("a_pass_before_each_copy", (("copy.c", BEGINNING, BEGINNING + A_PASS),), ())


def stored_counts(part: str) -> instructions.Counts:
    if instructions.reason_against():
        pytest.skip(f"NOT COUNTED: {instructions.reason_against()}")
    compiler = instructions.compilers()[part]
    if compiler not in load("instructions"):
        pytest.skip(f"NOT COMPARED: no counts are stored for {compiler}")
    return dict(load("instructions")[compiler]["counts"])


@pytest.mark.long
@pytest.mark.parametrize("part", ["core", "kernels"])
def test_a_hot_call_takes_no_more_instructions_than_stored(part: str) -> None:
    """At least a quarter of the stored count shows that instructions were counted at all."""
    stored = stored_counts(part)
    counts = instructions.count_core() if part == "core" else instructions.count_kernels()
    assert instructions.grown(counts, stored) == []
    assert all(counts[name] > stored[name] / 4 for name in stored)


@pytest.mark.long
def test_an_added_pass_over_a_row_is_found(tmp_path: Path) -> None:
    """The positive control: whatever writes a row takes more, and what only reads does not."""
    stored, longer = stored_counts("core"), mutants.mutate(LONGER_COPY, tmp_path)
    counts = instructions.count_core(longer, ["count_calls"])  # networks copy no rows
    grown = instructions.grown(counts, {name: stored[name] for name in counts})
    assert {line.partition(":")[0] for line in grown} == {
        "add, 4 floats",
        "add, 84 x 84 bytes",
        "add a batch of 64",
        "add to 64 lanes at once",
        "publish 64 KB",
    }


def test_growth_beyond_the_tolerance_is_named() -> None:
    stored = {"add": 300, "draw": 300, "gone": 7}
    assert instructions.grown({"add": 306, "draw": 307, "new": 7}, stored) == [
        "gone: counted on one side alone",
        "new: counted on one side alone",
        "draw: expected at most 300 instructions, got 307 (+2.3%)",
    ]
