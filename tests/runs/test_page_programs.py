"""Every program on the pages of Start, Guides and Algorithms and in the README runs, as a reader would run it."""

import re
from pathlib import Path
from typing import Any

import pytest
from pages import ROOT, programs_of, run_page

import marlcore as mc
from marlcore.algos import ALGORITHMS

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

FOLDERS = ("start", "guides", "algorithms")
FIRST = [ROOT / "README.md", ROOT / "docs" / "index.md"]
PAGES = [*FIRST, *(page for folder in FOLDERS for page in sorted((ROOT / "docs" / folder).glob("*.md")))]
NEEDS = {"action-masks": "pettingzoo", "export": "onnxscript", "sweeps-and-seeds": "optuna"}
NEEDS |= dict.fromkeys(("coma", "happo", "maddpg", "mappo", "matd3", "qmix", "teams", "vdn"), "mpe2")


def documented_metrics(name: str) -> set[str]:
    text = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text()
    if same := re.search(r"They are \[\w+'s\]\((\w+)\.md#metrics\)", text):
        return documented_metrics(same[1])
    (section,) = re.findall(r"^## Metrics\n(.*?)^## ", text, re.M | re.S)
    return {metric for cell in re.findall(r"^\| (`.*?) \|", section, re.M) for metric in re.findall(r"`(\w+)`", cell)}


def logged_by(kind: Any, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The names of the metrics that the algorithm's trainers return from now on."""
    make_trainer, logged = kind.make_trainer, set[str]()

    def spied(self: Any, model: Any) -> Any:
        trainer = make_trainer(self, model)
        update = trainer.update

        def noted(batch: Any) -> mc.Update:
            result: mc.Update = update(batch)
            logged.update(result.metrics)
            return result

        trainer.update = noted
        return trainer

    monkeypatch.setattr(kind, "make_trainer", spied)
    return logged


def test_every_program_is_found_with_its_own_reason() -> None:
    for page in PAGES:
        text = page.read_text()
        programs = programs_of(page)
        assert len(programs) == text.count("\n```python\n"), page.name
        reasons = [program.reason for program in programs if program.reason]
        assert reasons == re.findall(r"<!-- not run: (.*) -->\n```python", text), page.name


@pytest.mark.long  # half a minute for all of them, on an idle machine
@pytest.mark.parametrize(
    "page", [pytest.param(page, id=f"{page.parent.name}/{page.stem}") for page in PAGES if programs_of(page)]
)
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An algorithm's example also logs exactly the metrics on its page, schedules aside."""
    if needed := NEEDS.get(page.stem):
        pytest.importorskip(needed)
    monkeypatch.chdir(tmp_path)
    kind: Any = ALGORITHMS.get(page.stem) if page.parent.name == "algorithms" else None
    logged = logged_by(kind, monkeypatch) if kind else set()
    names = run_page(page)
    if kind:
        assert all(count > 0 for count in names["result"].updates.values())
        told = documented_metrics(page.stem)
        assert {"loss"} <= logged <= told <= logged | {"epsilon"} | kind().schedules().keys()
