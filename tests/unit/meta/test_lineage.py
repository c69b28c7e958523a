"""The decisions of a population: which members copy others, with which settings, and which reach a further rung."""

import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from refused import Refused, check_refused, refusals

import marlcore as mc
from marlcore.meta.lineage import LOST, STATE, Lineage, MemberState, explored, parent_of, plot_lineage, promoted
from marlcore.record import read_json, write_json

RATE = {"algorithm.learning_rate": mc.LogUniform(1e-5, 1e-2)}


RANKED = {member: float(member) for member in range(8)}
PARENTS: list[tuple[dict[int, float], dict[int, set[int | None]]]] = [  # scores, and members with their parents
    (RANKED, {0: {6, 7}, 1: {6, 7}, **{member: {None} for member in range(2, 8)}}),
    ({0: 1.0, 1: 2.0}, {0: {1}, 1: {None}}),  # as Jaderberg et al. 2017: the bottom copies the top
    ({0: 1.0, 1: 2.0, 2: 3.0}, {0: {2}, 1: {None}, 2: {None}}),
    ({0: LOST, 1: 2.0, 2: 3.0}, {0: {2}}),
    ({0: LOST, 1: LOST}, {0: {None}}),
    ({0: 1.0}, {0: {None}}),
    (dict.fromkeys(range(8), 3.0), {0: {None}}),
    ({member: float(member) for member in range(4)}, {5: {None}}),  # it has no score
]


@pytest.mark.parametrize(("scores", "expected"), PARENTS)
def test_the_lowest_share_copies_any_of_the_highest(scores: Any, expected: Any) -> None:
    """Members with equal scores copy none; a diverged member copies the best if there is one."""
    generators = [np.random.default_rng(seed) for seed in range(200)]
    found = {member: {parent_of(member, scores, 0.25, each) for each in generators} for member in expected}
    assert found == expected


def test_a_decision_is_that_of_its_seed_member_and_time() -> None:
    def draws(rows: int) -> list[float]:
        lineages = [Lineage(Path(), mc.PopulationConfig(settings=RATE), 9, [], seed, [{}] * rows) for seed in range(5)]
        return [lineage.generator_of(member).random() for lineage in lineages for member in range(2)]

    assert draws(0) == draws(0) and len({*draws(0), *draws(1)}) == 20


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
    monkeypatch.setattr("marlcore.meta.lineage.canvas", lambda *_: nullcontext((None, axes)))
    rows = [
        dict(zip(columns, row, strict=True))
        for row in ((0, 10, 1, ""), (1, 10, 0, ""), (0, 20, 2, ""), (1, 20, 1.5, 0))
    ]
    config = SimpleNamespace(method="pbt", size=2)
    lineage: Any = SimpleNamespace(folder=Path(), config=config, members=[0, 1], rows=rows, scores={0: 2.0, 1: 1.5})
    plot_lineage(lineage)
    assert [call.args[:2] for call in axes.plot.call_args_list if ":" in call.args] == [((20, 20), (2, 1.5))]


def test_a_lineage_reads_back_as_it_was_written(tmp_path: Path) -> None:
    config = mc.PopulationConfig(settings={"algorithm.hidden": mc.Choice((8,), (16, 8))}, size=2, method="random")
    lineage = Lineage.begun(tmp_path, config, 100, seed=1)
    lineage.ended(1, 100, 2.5)
    lineage.members[0] = MemberState({"algorithm.hidden": (16, 8)}, 100, score=LOST, done=True)
    lineage.write()
    again = Lineage.read(tmp_path, config, 100, seed=1)
    assert again.members[0] == lineage.members[0] and again.rows == lineage.rows
    assert math.isnan(again.members[1].score) and again.members[1].begin == 100
    table = (tmp_path / "lineage.csv").read_text().splitlines()
    assert table[0] == "member,step,score,copied,algorithm.hidden" and table[1].startswith("1,100,2.5,,")


def searched(**settings: Any) -> Any:
    return partial(mc.PopulationConfig, **{"settings": dict(RATE), **settings})


REFUSED: dict[str, Refused] = {
    "an empty range": (partial(mc.Uniform, 2, 1), "Uniform: expected two numbers, the lower one first, got 2 and 1"),
    "a logarithm of zero": (partial(mc.LogUniform, 0, 1), "LogUniform: expected numbers above 0, got 0"),
    "one option": (partial(mc.Choice, 1), "Choice: expected at least two options, got (1,)"),
    "no settings": (searched(settings={}), "settings: expected distributions by the names of settings, got {}"),
    "a number": (searched(settings={"a": 0.9}), "expected a Uniform, a LogUniform or a Choice for 'a', got 0.9"),
    "one member": (searched(size=1), "size: expected an integer of at least 2, got 1"),
    "no factors": (searched(factors=()), "factors: expected a tuple of factors, got ()"),
}
test_bad_settings_are_refused = refusals(REFUSED)


def drawn(hidden: list[int], gamma: float) -> dict[str, Any]:
    return {"settings": {"algorithm.hidden": hidden, "learner.gamma": gamma}}


FORGED: dict[str, tuple[dict[str, Any], str]] = {
    "another setting": ({"settings": {"algorithm.network": "os:system"}}, "settings: expected the fields ["),
    "no option": (drawn([4], 0.95), "algorithm.hidden: expected one of ((8,), (16, 8)), got [4]"),
    "out of range": (drawn([8], 2), "learner.gamma: expected a number from 0.9 to 0.99, got 2"),
    "a path": ({"copied": "../../x"}, "copied: expected an integer of at least 0, got '../../x'"),
    "no target": ({"target": None}, "target: expected an integer of at least 0, got None"),
    "another member": ({"name": 1}, "unexpected keyword argument 'name'"),
    "a row": ({"row": {"member": 7}}, "member: expected an integer from 0 to 1, got 7"),
    "a row's name": ({"row": {"x": 1}}, "rows: expected the fields ["),
    "no list of rows": ({"rows": {}}, "rows: expected list, got {}"),
    "no member": ({"members": []}, "members: expected an integer from 2 to 2, got 0"),
}  # fmt: skip


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_population_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    changes, says = FORGED[case]
    hidden = mc.Choice((8,), (16, 8))
    config = mc.PopulationConfig(settings={"algorithm.hidden": hidden, "learner.gamma": mc.Uniform(0.9, 0.99)}, size=2)
    lineage = Lineage.begun(tmp_path, config, 100, seed=1)
    lineage.ended(1, 100, 2.5)
    lineage.copied(1, 0)
    lineage.write()
    saved = read_json(tmp_path / STATE)
    saved["rows"][0] |= changes.get("row", {})
    saved["members"][0] |= {name: value for name, value in changes.items() if name not in ("row", "rows", "members")}
    write_json(tmp_path / STATE, saved | {name: changes[name] for name in ("rows", "members") if name in changes})
    check_refused(lambda: Lineage.read(tmp_path, config, 100, seed=1), ValueError, f"'{tmp_path}' (")
    check_refused(lambda: Lineage.read(tmp_path, config, 100, seed=1), ValueError, says)


@pytest.mark.parametrize("other", [{"size": 3}, {"method": "pbt"}, {"interval": 5}])
def test_a_population_keeps_what_it_began_with(tmp_path: Path, other: dict[str, int]) -> None:
    config = mc.PopulationConfig(settings=dict(RATE), size=2, method="random")
    Lineage.begun(tmp_path, config, 100, seed=1).write()
    (name,) = other
    with pytest.raises(ValueError, match=rf"population.{name}: expected .*, as at its start, got"):
        Lineage.read(tmp_path, replace(config, **other), 100, seed=1)
