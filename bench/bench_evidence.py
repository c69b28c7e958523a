"""Figures that renew themselves: generated pages, the verdict on a soak, comparisons with earlier runs, and the zoo."""

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from marlcore.config import preset_names

from .__main__ import main
from .core import report
from .costs import growth, soak
from .pages import long_form, pages
from .zoo import page as zoo_page
from .zoo import zoo

FIGURES = zoo.read_figures(zoo.FIGURES)


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_a_page_shows_the_stored_figures(page: Path) -> None:
    """`python -m bench pages` renews it."""
    assert pages.filled(page.read_text()) == page.read_text()


def test_a_figure_that_was_typed_is_replaced() -> None:
    """The positive control: a figure within a line stays in that line."""
    region = "text\n<!-- figures: table while_sampled -->\n{}<!-- end -->\nmore\n"
    filled = pages.filled(region.format(""))
    figure = f"| {pages.load('earlier')['while_sampled']['rows'][0][1]} |"
    assert filled.startswith("text\n") and filled.endswith("more\n") and figure in filled
    assert pages.filled(filled.replace(figure, "| 1.00 |")) == pages.filled(filled) == filled
    within = pages.filled("| core | <!-- figures: long core -->typed<!-- end --> | control |\n")
    assert "typed" not in within and within.count("\n") == 1


@pytest.mark.parametrize("name", ["cluster", "drop-ins", "performance", "planning", "reliability", "results"])
def test_no_measured_number_is_typed_on_a_page(name: str) -> None:
    """Outside code, links and what is generated: no fraction, thousands or per cent."""
    text = pages.REGION.sub("", (pages.DOCS / f"{name}.md").read_text())
    prose = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)|(?:Python|sorrel) [\d.]+", "", text, flags=re.DOTALL)
    assert re.findall(r"\d[.,]\d+|\d+ ?%|\d+ (?:us|ms|microseconds|seconds|MB|steps/s)\b", prose) == []


def test_a_long_form_that_ends_well_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = tmp_path / "long.json"
    monkeypatch.setattr(long_form, "STORED", stored)
    for status in (1, 0):
        program = f"print('7  kills'); print('0 torn'); raise SystemExit({status})"
        assert main(["long_form", "kills core", sys.executable, "-c", program]) == status
        assert stored.exists() == (status == 0)
    kept = json.loads(stored.read_text())
    assert kept["kills core"]["found"] == "7 kills; 0 torn" and "wakeups" in kept


def soaked(pid: Callable[[int], int] = lambda i: 7, **measures: Callable[[int], float]) -> list[soak.Sample]:
    """An hour of one process, whose measures are constant except the given ones."""
    usual = {"rss_mb": 100.0, "anonymous_mb": 50.0, "descriptors": 9}
    rows = ({**usual, **{name: of(i) for name, of in measures.items()}} for i in range(361))
    return [soak.Sample(10.0 * i, 1.0, {"a": soak.Process(pid(i), **row)}, {}) for i, row in enumerate(rows)]


def test_memory_and_descriptors_that_creep_are_named() -> None:
    """Not what grows in the warm-up, and not a process that was replaced."""
    assert soak.creeping(soaked()) == soak.creeping(soaked(rss_mb=lambda i: 100.0 + (40.0 if i > 20 else 0.0))) == []
    assert soak.creeping(soaked(rss_mb=lambda i: 100.0 + i / 40)) == [
        "a: expected at most 3.6 MB more resident memory, got 7.3"
    ]
    falling = soaked(rss_mb=lambda i: 100.0 - i / 40, anonymous_mb=lambda i: 50.0 + i / 40)
    assert soak.creeping(falling) == ["a: expected at most 3.6 MB more anonymous memory, got 7.3"]
    assert soak.creeping(soaked(descriptors=lambda i: 9 + i // 300)) == ["a: expected no further descriptor, got 1"]
    assert soak.creeping(soaked(rss_mb=lambda i: 100.0 + i / 40, pid=lambda i: i // 200)) == []


def test_a_soak_of_seconds_has_rates() -> None:
    """Ctrl-C can end a soak in its first minute."""
    process = soak.Process(7, 100.0, 50.0, 9)
    short = [soak.Sample(t, 1.0, {"a": process}, {"steps": int(100 * t)}) for t in (0.0, 4.0)]
    figures = soak.figures_of(short)
    assert "| steps/s | 100 | 100 | 100 |" in pages.rates_table(figures)
    assert "| a | 100 (+0) | 50 (+0) | 9 (+0) |" in pages.creep_table(figures)


def test_a_ratio_outside_the_stored_spread_is_marked() -> None:
    ratios = {name: {"memcpy": [ratio] * 3} for name, ratio in (("add", 2.1), ("draw", 3.0), ("new", 1.0))}
    stored = {name: {"memcpy": [1.8, 2.0, 2.2]} for name in ("add", "draw")}
    table = report.comparison(ratios, stored)
    lines = {line.split("|")[1].strip(): line for line in table.splitlines() if "memcpy" in line}
    assert "1.05" in lines["add"] and "outside" not in lines["add"]
    assert "1.50" in lines["draw"] and "outside" in lines["draw"]
    assert "not stored" in lines["new"]


@pytest.mark.long
@pytest.mark.parametrize("program", soak.PROGRAMS)
def test_a_short_soak_sees_every_process_and_call(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "EVERY_S", 0.5)
    with soak.PROGRAMS[program]() as counts:
        while not any(counts().values()) or counts().get("updates") == 0:  # a learner begins after actors
            time.sleep(0.1)
        taken = soak.take(counts, 1.0)
    assert {"parent", "fork server"} < taken[-1].processes.keys()
    assert len(taken[-1].processes) > 6


@pytest.mark.long
def test_the_growth_of_a_run_is_measured() -> None:
    figures = growth.measure_run(copies=2, agents=2, policies=1, learners=1)
    assert min(figures.values()) > 0 and figures["memory_mb"] > 100 and len(figures) == 8


@pytest.mark.long
def test_the_interval_cuts_a_quarter_on_each_side() -> None:
    mean, low, high = zoo_page.interquartile_mean([3.0, 1.0, 4.0, 1.5, 9.0])
    assert mean == pytest.approx((1.5 + 3.0 + 4.0) / 3) and 1.0 <= low < mean < high <= 9.0


@pytest.mark.parametrize("preset", FIGURES)
def test_stored_figures_are_of_the_presets_present_settings(preset: str) -> None:
    assert preset in preset_names()
    assert FIGURES[preset]["settings"] == zoo.digest_of(preset)


@pytest.mark.long
def test_the_page_is_that_of_the_stored_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Except the ends of intervals, which other versions of SciPy may draw differently."""
    written = (zoo_page.DOCS / "zoo.md").read_text()
    (tmp_path / "zoo.md").write_text(re.sub(r"(?m)^\| cartpole-ppo .*\n", "", written))
    monkeypatch.setattr(zoo_page, "DOCS", tmp_path)
    zoo_page.write(FIGURES, zoo.read_figures(zoo.SWEEP), zoo.read_figures(zoo.BENCHMARL))
    ends = re.compile(r" \[-?[\d.e+]+, -?[\d.e+]+\]")
    assert ends.sub("", (tmp_path / "zoo.md").read_text()) == ends.sub("", written)
    assert all(f"| {name} |" in written for name in preset_names())
    assert 5_000 < (tmp_path / "zoo" / "curves.png").stat().st_size < 120_000
