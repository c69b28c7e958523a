"""Settings of the replay in whole runs: priorities, files instead of memory, batches drawn ahead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crowd import Crowd

import marlcore as mc
from marlcore.memory.survey import sweep
from marlcore.replay import Sampler
from marlcore.testing.victim import living
from marlcore.training import read_metrics

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

CONFIG = mc.Config(
    total_steps=3_000,
    actor=mc.ActorConfig(envs=2, sync_interval=10),
    learner=mc.LearnerConfig(batch_size=32, warmup=100, n_step=3, log_interval=20, device="cpu"),
    replay=mc.ReplayConfig(prioritized=True, alpha=1.0, beta=0.2, beta_steps=200),
    exploration=mc.ExplorationConfig(epsilon=1.0),
    updates_per_step=0.2,
)


class Favouring(mc.DQN):
    """Gives transitions with the action 1 five times the priority of the others, and reports what it drew."""

    def make_trainer(self, model: Any) -> Any:
        trainer = super().make_trainer(model)
        update = trainer.update

        def favouring(batch: Any) -> mc.Update:
            ones = (batch.action == 1).float()
            drawn = {"ones": ones.mean(), "least_weight": batch.weight.min()}
            return mc.Update({**update(batch).metrics, **drawn}, priority=0.2 + 0.8 * ones)

        trainer.update = favouring
        return trainer


def alone() -> Any:
    return Crowd(1)


def train(tmp_path: Path, algorithm: Any = "dqn", **changes: Any) -> Any:
    return mc.train(alone, algorithm, replace(CONFIG, run_dir=str(tmp_path / "run"), **changes), progress=False)


def values_of(result: Any, name: str) -> list[float]:
    return [metric.value for metric in read_metrics(result.run_dir / "metrics.csv") if metric.name == name]


@pytest.mark.parametrize(
    ("mode", "prefetch"),
    [("serial", 0), pytest.param("async", 0, marks=pytest.mark.long), pytest.param("async", 2, marks=pytest.mark.long)],
)
def test_the_trainers_priorities_decide_what_is_drawn(tmp_path: Path, mode: str, prefetch: int) -> None:
    """Beta rises meanwhile: the weights of rare rows fall."""
    learner = replace(CONFIG.learner, prefetch=prefetch)
    result = train(tmp_path, Favouring(), mode=mode, learner=learner)
    ones, weights = values_of(result, "ones"), values_of(result, "least_weight")
    assert result.updates["agent_0"] > 500
    assert sum(ones[-5:]) / 5 > 0.7, ones  # new rows come with the highest priority
    assert weights[0] > 0.5 and max(weights[-5:]) < 0.3, weights


@pytest.mark.long
def test_uniform_draws_are_half_and_half(tmp_path: Path) -> None:
    """The control: without `prioritized` the trainer's priorities are left."""
    result = train(tmp_path, Favouring(), mode="serial", replay=mc.ReplayConfig())
    ones = values_of(result, "ones")
    assert 0.4 < sum(ones[-5:]) / 5 < 0.6
    assert set(values_of(result, "least_weight")) == {1.0}


def test_each_priority_reaches_the_sampler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Any, Any]] = []
    update = Sampler.update_priorities

    def noting(sampler: Sampler, index: Any, priority: Any) -> None:
        given.append((index, priority))
        update(sampler, index, priority)

    monkeypatch.setattr(Sampler, "update_priorities", noting)
    result = train(tmp_path, mc.DQN(), mode="serial", total_steps=600)
    assert len(given) == result.updates["agent_0"] > 50
    assert all(len(index) == len(priority) == 32 and bool((priority >= 0).all()) for index, priority in given)


@pytest.mark.long
def test_batches_drawn_ahead_train_as_many_times(tmp_path: Path) -> None:
    learner = replace(CONFIG.learner, prefetch=2)
    result = train(tmp_path, learner=learner, replay=mc.ReplayConfig(), total_steps=6_000)
    due = 0.2 * (6_000 - 100)
    assert due * 0.99 <= result.updates["agent_0"] <= due + 1


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("mode", ["serial", pytest.param("async", marks=pytest.mark.long)])
def test_replays_in_files_are_gone_after_the_run(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    config = replace(
        CONFIG, mode=mode, run_dir=str(tmp_path / "run"), total_steps=10**9,
        replay=mc.ReplayConfig(path=str(folder), save=True),
    )  # fmt: skip
    with mc.start(alone, "dqn", config) as run:
        while run.status().steps < 500:
            time.sleep(0.01)
        (name,) = files(folder)
        assert name.endswith("agent_0.replay")
    assert files(folder) == []
    steps = run.status().steps + 500
    result = mc.train(alone, "dqn", replace(config, total_steps=steps), resume=run.run_dir, progress=False)
    assert files(folder) == [] and result.steps >= steps


PROGRAM = """
import sys
from pathlib import Path
import marlcore as mc
from test_replay_settings import CONFIG, alone
from dataclasses import replace
config = replace(CONFIG, run_dir=sys.argv[1], total_steps=10**9, replay=mc.ReplayConfig(path=sys.argv[2], save=True),
                 learner=replace(CONFIG.learner, checkpoint_interval=20))
mc.train(alone, "dqn", config, progress=False)
"""


@pytest.mark.long
def test_files_of_a_killed_run_block_no_later_one(tmp_path: Path) -> None:
    folder, run = tmp_path / "large", tmp_path / "run"
    folder.mkdir()
    (folder / "marlcore-notes.txt").write_text("kept")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, run, folder], env=environment, start_new_session=True)
    try:
        while not list(run.glob("checkpoints/*.replay")):
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 1800
    while living(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(files(folder)) == 2, "the killed run left its file"
    config = replace(CONFIG, replay=mc.ReplayConfig(path=str(folder), save=True))
    other = mc.train(alone, "dqn", replace(config, run_dir=str(tmp_path / "other")), progress=False)
    assert other.steps >= 3_000 and files(folder) == ["marlcore-notes.txt"]
    more = replace(config, learner=replace(config.learner, checkpoint_interval=20), total_steps=2 * 10**9)
    with mc.start(alone, "dqn", more, resume=run) as resumed:
        assert len(files(folder)) == 2
        steps = resumed.status().steps
        while resumed.status().steps < steps + 500:
            time.sleep(0.01)
    assert files(folder) == ["marlcore-notes.txt"]
    sweep()
