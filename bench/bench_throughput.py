"""Each row of the throughput benchmark runs once in its smallest form, where benchmarks are disabled."""

import pytest

from . import throughput

SMALL = 0.001


SIDES = {
    "acting": ["4 copies", "2 runs of 16 copies"],
    "vectorized": ["64 copies"],
    "beside": ["a hanging sink", "an evaluator"],
    "dqn": ["marlcore", "plain loop"],
    "on_policy": ["marlcore", "marlcore, serial"],
    "designs": ["marlcore", "pickles in mp.Queue", "shared arrays with mp.Lock"],
}


@pytest.mark.long
@pytest.mark.parametrize("name", SIDES)
def test_each_side_runs_and_makes_the_updates_that_its_steps_call_for(name: str) -> None:
    """Each side checks its updates itself."""
    row = throughput.rows(SMALL)[name]()
    rates = throughput.measure(throughput.Row(row.name, {side: row.sides[side] for side in SIDES[name]}), 1)
    assert all(rate > 0 for (rate,) in rates.values())


def test_a_goal_is_judged_by_the_ratio_of_each_round() -> None:
    rates = {"ours": [3.0, 40.0, 6.0], "theirs": [1.0, 10.0, 3.0]}
    goal = throughput.Goal("ours", 3, "theirs")
    assert goal.text(rates) == "ours / theirs: 3.00, at least 3: reached"
    assert throughput.Goal("ours", 7).text(rates) == "ours: 6 steps/s, at least 7: missed"
