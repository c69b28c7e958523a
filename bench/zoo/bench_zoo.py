"""The zoo's statistics, its stored figures and its page."""

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from marlcore.training import preset_names

from . import page, zoo
from .page import interquartile_mean

FIGURES = zoo.read_figures(zoo.FIGURES)


@pytest.mark.long
@pytest.mark.parametrize("scores", [[3.0, 1.0, 4.0, 1.5, 9.0], [-2.0, 8.0, 5.0]])
def test_the_interval_is_that_of_all_resamples(scores: list[float]) -> None:
    """The oracle draws every resample once; each quarter that is cut holds n // 4 scores."""
    cut = len(scores) // 4
    means = [np.mean(sorted(drawn)[cut : len(scores) - cut]) for drawn in product(scores, repeat=len(scores))]
    mean, low, high = interquartile_mean(scores)
    assert mean == pytest.approx(np.mean(sorted(scores)[cut : len(scores) - cut]))
    assert [low, high] == pytest.approx(np.percentile(means, [2.5, 97.5], method="inverted_cdf"), abs=0.1)


def test_equal_scores_have_an_interval_of_no_width() -> None:
    assert interquartile_mean([500.0] * 5) == (500.0, 500.0, 500.0)


@pytest.mark.parametrize("preset", FIGURES)
def test_stored_figures_are_of_the_presets_present_settings(preset: str) -> None:
    assert preset in preset_names()
    assert FIGURES[preset]["settings"] == zoo.digest_of(preset)


@pytest.mark.long
def test_the_page_is_that_of_the_stored_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But for the ends of intervals, which other versions of SciPy may draw otherwise."""
    written = (page.DOCS / "zoo.md").read_text()
    (tmp_path / "zoo.md").write_text(re.sub(r"(?m)^\| cartpole-ppo .*\n", "", written))
    monkeypatch.setattr(page, "DOCS", tmp_path)
    page.write(FIGURES, zoo.read_figures(zoo.DEFAULTS), zoo.read_figures(zoo.BENCHMARL))
    ends = re.compile(r" \[-?[\d.e+]+, -?[\d.e+]+\]")
    assert ends.sub("", (tmp_path / "zoo.md").read_text()) == ends.sub("", written)
    assert all(f"| {name} |" in written for name in preset_names())
    assert 5_000 < (tmp_path / "zoo" / "curves.png").stat().st_size < 120_000
