"""docs/metrics.md explains every metric, and none that no code logs. Longer tests look at further runs."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from metric_names import explained, unexplained
from puck import two_player_puck
from whole_runs import ON_POLICY, Runs

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

ROOT = Path(__file__).parents[2]
SOURCE = "\n".join(
    path.read_text()
    for room in ("algos", "loops", "record", "self_play", "run", "meta", "cluster")
    for path in sorted((ROOT / "marlcore" / room).rglob("*.py"))
)
CARTPOLE, ENVIRONMENTS = "gymnasium:CartPole-v1", {"continuous": "gymnasium:Pendulum-v1"}
GAMES: dict[str, Any] = {"pool": 3, "admit_updates": 20, "rating": "elo", "anchors": {"puck:idle": 0.5}}
CHANGES: dict[str, tuple[Any, dict[str, Any]]] = {
    "evaluation and stages": ("dqn", {"evaluation": {"interval": 200, "episodes": 2}, "stages": (100,)}),
    "on-policy": (mc.PPO(batch_size=64, minibatch_size=64, epochs=1), ON_POLICY),
    "continuous": ("sac", {"learner": {"warmup": 100}, "updates_per_step": "linear(0.1, 0.2, 400)"}),
    "self-play": ("dqn", {"self_play": GAMES, "evaluation": {"interval": 200, "episodes": 4}}),
}
runs = Runs(total_steps=400, learner={"warmup": 50, "log_interval": 5})


@pytest.mark.parametrize("case", CHANGES)
def test_every_metric_of_a_run_is_on_the_page(case: str, tmp_path: Path) -> None:
    algorithm, changes = CHANGES[case]
    env: Any = partial(two_player_puck, True) if case == "self-play" else ENVIRONMENTS.get(case, CARTPOLE)
    result = runs.train(tmp_path, env, algorithm, **changes)
    assert sum(result.updates.values()) > 0
    assert unexplained(result.run_dir) == []


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
