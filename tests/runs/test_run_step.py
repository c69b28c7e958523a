"""The step and stage of a run, as its environments read them."""

import json
from bisect import bisect_right
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from metric_names import unexplained
from whole_runs import MODES, Runs

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

STAGES = (100, 300)
runs = Runs(total_steps=400, stages=STAGES, evaluation={"interval": 200, "episodes": 2, "envs": 1})


class Noting(mc.TreasureHunt):
    def __init__(self, folder: Path) -> None:
        super().__init__(horizon=25)
        self._path = folder / f"{id(self)}.jsonl"

    def step(self, action: Any) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(mc.run_step()) + "\n")
        super().step(action)


def noted(folder: Path) -> list[list[list[int]]]:
    """The step, total and stage that each environment read, one after another."""
    return [[json.loads(line) for line in path.read_text().splitlines()] for path in folder.glob("*.jsonl")]


@MODES
def test_environments_read_the_step_and_the_stage(tmp_path: Path, mode: Any) -> None:
    """Actors and the evaluator read it, and a resumed run continues the count."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    result = runs.train(tmp_path, partial(Noting, tmp_path / "first"), mode=mode)
    assert unexplained(result.run_dir) == [], "metrics of evaluations and stages"
    for read in noted(tmp_path / "first"):
        steps = [step for step, _, _ in read]
        assert steps == sorted(steps) and steps[-1] <= 400
        assert all(total == 400 and stage == bisect_right(STAGES, step) for step, total, stage in read)
    acted = [step for read in noted(tmp_path / "first") for step, _, _ in read]
    assert min(acted) == 0 and max(acted) > 350
    runs.train(tmp_path, partial(Noting, tmp_path / "second"), mode=mode, total_steps=600, resume=True)
    assert min(step for read in noted(tmp_path / "second") for step, _, _ in read) >= 400
    assert mc.run_step() == mc.RunStep(0, 1, 0) and mc.run_step().fraction == 0.0
