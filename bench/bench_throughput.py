"""Each row of the throughput benchmark runs once in its smallest form, where benchmarks are disabled."""

from __future__ import annotations

import pytest

from . import throughput

SMALL = 0.001


@pytest.mark.long
@pytest.mark.parametrize("name", ["acting", "vectorized"])
def test_actors_that_act_alone(name: str) -> None:
    row = throughput.rows(SMALL)[name]()
    first = next(iter(row.sides))
    assert throughput.measure(throughput.Row(row.name, {first: row.sides[first]}), 1)[first][0] > 0


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "sides"),
    [("acting", ["2 runs of 16 copies"]), ("beside", ["a hanging sink", "an evaluator"])],
)
def test_actors_beside_others(name: str, sides: list[str]) -> None:
    row = throughput.rows(SMALL)[name]()
    rates = throughput.measure(throughput.Row(row.name, {side: row.sides[side] for side in sides}), 1)
    assert all(found > 0 for (found,) in rates.values())


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("dqn", ["marlcore", "plain loop"]),
        ("on_policy", ["marlcore", "marlcore, serial"]),
        ("designs", ["marlcore", "pickles in mp.Queue", "shared arrays with mp.Lock"]),
    ],
)
def test_each_side_makes_the_updates_that_its_steps_call_for(name: str, sides: list[str]) -> None:
    """Each side checks its updates itself."""
    row = throughput.rows(SMALL)[name]()
    rates = throughput.measure(throughput.Row(row.name, {side: row.sides[side] for side in sides}), 1)
    assert all(found > 0 for (found,) in rates.values())


def test_a_goal_is_judged_by_the_ratio_of_each_round() -> None:
    rates = {"ours": [3.0, 40.0, 6.0], "theirs": [1.0, 10.0, 3.0]}
    goal = throughput.Goal("ours", 3, "theirs")
    assert goal.text(rates) == "ours / theirs: 3.00, at least 3: reached"
    assert throughput.Goal("ours", 7).text(rates) == "ours: 6 steps/s, at least 7: missed"
