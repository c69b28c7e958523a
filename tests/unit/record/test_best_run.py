"""The best of several runs, by a metric in its last steps."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from refused import Refused, check_row

import marlcore as mc
from marlcore.processes import Metric
from marlcore.record import sinks

Rows = list[tuple[int, str, float]]  # step, agent, value


@pytest.fixture
def folder(tmp_path: Path) -> Callable[..., Path]:
    def made(**runs: Rows) -> Path:
        for name, rows in runs.items():
            (tmp_path / name).mkdir()
            with closing(sinks.CsvSink(tmp_path / name / "metrics.csv", "x")) as sink:
                for step, agent, value in [*rows, (10_000, "a", 99.0)]:
                    sink.record(Metric(0.0, step, agent, "loss" if value == 99.0 else "eval_return", value))
        return tmp_path

    return made


def test_the_last_tenth_decides(folder: Callable[..., Path]) -> None:
    """An earlier peak, a single agent's many values and the number of its reports do not matter."""
    runs = folder(
        early=[(899, "a", 50.0), (900, "a", 1.0), (1000, "a", 3.0)],
        steady=[(10, "a", 0.0), (950, "a", 2.0), (1000, "a", 4.0)],
        broken=[(1000, "a", float("nan"))],
        two=[(1000, "a", 9.0), (1000, "a", 9.0), (1000, "b", -5.0), (1000, "b", -5.0), (1000, "b", -5.0)],
    )
    assert mc.best_run(runs) == runs / "steady"
    assert mc.best_run(runs, agent="a") == runs / "two"
    assert mc.best_run([runs / "early", runs / "two"]) == runs / "early", "of equal ones the first"
    assert mc.best_run([runs / "broken", runs / "early"]) == runs / "early"
    assert mc.best_run(str(runs), "loss") == runs / "broken"


def test_an_agent_that_ended_early_counts_until_its_last_value(folder: Callable[..., Path]) -> None:
    runs = folder(early=[(850, "a", 100.0), (1000, "b", 1.0)], late=[(990, "a", 2.0), (1000, "b", 1.0)])
    assert mc.best_run(runs) == mc.best_run(runs, agent="a") == runs / "early"


def test_refuses(folder: Callable[..., Path]) -> None:
    runs = folder(one=[(10, "a", 1.0)])
    refused: dict[str, Refused] = {
        "empty": (partial(mc.best_run, runs / "one"), "runs: expected a directory that holds runs, got "),
        "none": (partial(mc.best_run, []), "runs: expected at least one run, got none"),
        "no run": (partial(mc.best_run, [runs]), "runs: expected directories of runs, got "),
        "metric": (partial(mc.best_run, runs, "win"), "expected a metric each run has, got 'win', which "),
        "agent": (partial(mc.best_run, runs, agent="b"), "expected a metric each run has for b, got "),
    }
    for row in refused.values():
        check_row(row)
