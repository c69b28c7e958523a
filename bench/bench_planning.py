"""The comparison of `python -m bench.planning`, once, on few states; it checks that all sides agree."""

from __future__ import annotations

import pytest

from . import planning


def test_all_sides_plan_alike() -> None:
    figures = planning.measure(400, 0.0, [1, 2], rounds=1)
    assert {*figures.build} == {*figures.induce} == {"plain", "1", "2"}
    assert figures.graph_bytes > 400 * 16 and figures.policy_bytes > 400 * 2 * 8 * 5
    table = planning.rates_table("induction", [figures], "induce", 2)
    assert [column.header for column in table.columns][2:] == ["plain", "1 workers", "2 workers"]


@pytest.mark.long
def test_memory_is_that_of_a_process_of_its_own() -> None:
    small = planning.measure_memory(1_000, 2)
    assert small["peak_bytes"] > small["graph_bytes"] + small["policy_bytes"] > 0
