"""What a population decides: who copies whom, with which settings, and who goes on to a further rung."""

import math
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from refused import refusals

import marlcore as mc
from marlcore.training.lineage import LOST, Kin, Lineage, explored, parent_of, plot_lineage, promoted

RATE = {"algorithm.learning_rate": mc.LogUniform(1e-5, 1e-2)}
SEEDS = range(200)


def parents(member: int, scores: dict[int, float], share: float = 0.25) -> set[int | None]:
    return {parent_of(member, scores, share, np.random.default_rng(seed)) for seed in SEEDS}


def test_the_lowest_share_copies_any_of_the_highest() -> None:
    scores = {member: float(member) for member in range(8)}
    assert [parents(member, scores) for member in range(8)] == [{6, 7}, {6, 7}, *[{None}] * 6]


def test_too_few_or_equal_scores_make_nobody_copy() -> None:
    assert parents(0, {0: 1.0, 1: 2.0, 2: 3.0}) == {None}
    assert parents(0, dict.fromkeys(range(8), 3.0)) == {None}
    assert parents(5, {member: float(member) for member in range(4)}) == {None}


def test_a_diverged_member_copies_the_best_if_there_is_one() -> None:
    assert parents(0, {0: LOST, 1: 2.0, 2: 3.0}) == {2}
    assert parents(0, {0: LOST, 1: LOST}) == {None}


def test_copied_settings_are_perturbed_or_drawn_anew() -> None:
    settings = {"learner.gamma": mc.Uniform(0.9, 0.99), "learner.n_step": mc.Choice(1, 2, 3, 4), **RATE}
    config = mc.PopulationConfig(settings=settings, resample=0.25)
    before = {"learner.gamma": 0.95, "learner.n_step": 2, "algorithm.learning_rate": 1e-3}
    found = [explored(config, before, np.random.default_rng(seed)) for seed in range(2_000)]
    rates = np.array([own["algorithm.learning_rate"] for own in found])
    near = np.isclose(rates, 0.8e-3) | np.isclose(rates, 1.2e-3)
    assert 0.7 < near.mean() < 0.8 and rates[~near].min() < 1e-4 < 5e-3 < rates[~near].max()
    assert {own["learner.n_step"] for own in found} == {1, 2, 3, 4}
    gammas = np.array([own["learner.gamma"] for own in found])
    assert gammas.min() == 0.9 and gammas.max() == 0.99, "a perturbed number stays in its range"


def test_log_uniform_draws_each_magnitude_equally_often() -> None:
    draws = [mc.LogUniform(1e-5, 1e-1).draw(np.random.default_rng(seed)) for seed in range(2_000)]
    counts, _ = np.histogram(np.log10(draws), bins=4, range=(-5, -1))
    assert counts.sum() == 2_000 and counts.min() > 400


def test_the_best_of_a_rung_go_on_once() -> None:
    rung = {0: 5.0, 1: 9.0, 2: 1.0, 3: LOST}
    assert promoted(rung, [], eta=2) == [1, 0]
    assert promoted(rung, [1], eta=2) == [0]
    assert promoted(rung, [], eta=5) == []
    assert promoted({0: LOST, 1: LOST}, [], eta=2) == []


def test_a_copy_is_joined_to_its_sources_last_score(monkeypatch: pytest.MonkeyPatch) -> None:
    axes, columns = Mock(), ("member", "step", "score", "copied")
    monkeypatch.setattr("marlcore.training.lineage.canvas", lambda *_: nullcontext((None, axes)))
    rows = [
        dict(zip(columns, row, strict=True))
        for row in ((0, 10, 1, ""), (1, 10, 0, ""), (0, 20, 2, ""), (1, 20, 1.5, 0))
    ]
    lineage: Any = SimpleNamespace(folder=Path(), kin=[0, 1], rows=rows, scores={0: 2.0, 1: 1.5})
    plot_lineage(lineage, "a population")
    assert [call.args[:2] for call in axes.plot.call_args_list if ":" in call.args] == [((20, 20), (2, 1.5))]


def test_a_lineage_reads_back_as_it_was_written(tmp_path: Path) -> None:
    config = mc.PopulationConfig(settings={"algorithm.hidden": mc.Choice((8,), (16, 8))}, size=2, method="random")
    lineage = Lineage.begun(tmp_path, config, 100, seed=1)
    lineage.ended(1, 100, 2.5, None)
    lineage.kin[0] = Kin({"algorithm.hidden": (16, 8)}, 100, score=LOST, done=True)
    lineage.write()
    again = Lineage.read(tmp_path, config, 100)
    assert again.kin[0] == lineage.kin[0] and again.rows == lineage.rows
    assert math.isnan(again.kin[1].score) and again.kin[1].begin == 100
    table = (tmp_path / "lineage.csv").read_text().splitlines()
    assert table[0] == "member,step,score,copied,algorithm.hidden" and table[1].startswith("1,100,2.5,,")


test_bad_settings_are_refused = refusals(
    {
        "an empty range": (
            lambda: mc.Uniform(2, 1), ValueError,
            "Uniform: expected two numbers, the lower one first, got 2 and 1",
        ),
        "a logarithm of zero": (lambda: mc.LogUniform(0, 1), ValueError, "LogUniform: expected numbers above 0, got 0"),
        "one option": (lambda: mc.Choice(1), ValueError, "Choice: expected at least two options, got (1,)"),
        "no settings": (
            lambda: mc.PopulationConfig(settings={}), ValueError,
            "settings: expected distributions by the names of settings, got {}",
        ),
        "no distribution": (
            lambda: mc.PopulationConfig(settings={"learner.gamma": 0.9}), ValueError,  # type: ignore[dict-item]
            "settings: expected a Uniform, a LogUniform or a Choice for 'learner.gamma', got 0.9",
        ),
        "one member": (
            lambda: mc.PopulationConfig(settings=dict(RATE), size=1), ValueError,
            "size: expected an integer of at least 2, got 1",
        ),
        "no factors": (
            lambda: mc.PopulationConfig(settings=dict(RATE), factors=()), ValueError,
            "factors: expected a tuple of factors, got ()",
        ),
    }
)  # fmt: skip


@pytest.mark.parametrize("other", [{"size": 3}, {"method": "pbt"}, {"interval": 5}])
def test_a_population_keeps_what_it_began_with(tmp_path: Path, other: dict[str, int]) -> None:
    settings = dict(RATE)
    config = mc.PopulationConfig(settings=settings, size=2, method="random")
    Lineage.begun(tmp_path, config, 100, seed=1).write()
    (name,) = other
    with pytest.raises(ValueError, match=rf"population.{name}: expected .*, as it began, got"):
        Lineage.read(tmp_path, mc.PopulationConfig(**{**vars(config), **other}), 100)
