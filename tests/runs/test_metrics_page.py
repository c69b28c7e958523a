"""docs/metrics.md explains every metric, and none that no code logs. Other tests compare their runs with the page."""

import re
from pathlib import Path

import pytest
from metric_names import explained, unexplained
from whole_runs import Runs

ROOT = Path(__file__).parents[2]
SOURCE = "\n".join(
    path.read_text()
    for room in ("algos", "loops", "record", "self_play", "run", "meta", "cluster")
    for path in sorted((ROOT / "marlcore" / room).rglob("*.py"))
)


@pytest.mark.usefixtures("undrawn")
def test_every_metric_of_a_continuous_policy_is_on_the_page(tmp_path: Path) -> None:
    """Metrics of evaluations, stages, self-play and on-policy runs: see `unexplained` in the tests of such runs."""
    runs = Runs(total_steps=400, learner={"warmup": 100, "log_interval": 5}, updates_per_step="linear(0.1, 0.2, 400)")
    result = runs.train(tmp_path, "gymnasium:Pendulum-v1", "sac")
    assert result.updates["agent_0"] > 0 and unexplained(result.run_dir) == []


def test_every_metric_on_the_page_is_logged_by_some_code() -> None:
    """Its name stands in quotes where runs are made, up to what differs from run to run."""
    names = {name: re.escape(re.split(r"[/_]?<", name)[0]) for name in explained() if not name.startswith("<")}
    names = {name: re.sub(r"_p(50|99)$", r"_p(?:\1|\\{p\\})", start) for name, start in names.items()}
    assert [name for name, start in names.items() if not re.search(rf"\"{start}[\"/_{{]", SOURCE)] == []


def test_the_page_has_every_metric_of_the_algorithms_pages() -> None:
    """Another test compares these pages with what trainers return."""
    pages = "".join(page.read_text() for page in (ROOT / "docs" / "algorithms").glob("*.md"))
    rows = re.findall(r"^\| (`\w.*?`) \|", "".join(re.findall(r"^## Metrics\n(.*?)^## ", pages, re.M | re.S)), re.M)
    assert rows and {name for row in rows for name in re.findall(r"`(\w+)`", row)} <= set(explained())
    assert len(explained()) == len(set(explained())), "no metric has two rows"
