"""Whole runs of recurrent policies: they repeat themselves, go on, are evaluated, and survive kills."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import marlcore as mc
from marlcore.envs import Recall
from marlcore.processes import PID
from marlcore.training import read_metrics

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

SMALL = mc.R2D2(hidden=(16, 16), units=12, length=12, burn_in=4, period=8)
CONFIG = mc.Config(
    total_steps=1_200,
    mode="serial",
    updates_per_step=0.05,
    actor=mc.ActorConfig(envs=4, sync_interval=10),
    learner=mc.LearnerConfig(batch_size=8, warmup=100, log_interval=10, device="cpu"),
    replay=mc.ReplayConfig(prioritized=True),
)


def train(run_dir: Path, env: Any = "recall", resume: Path | None = None, **changes: Any) -> mc.Result:
    config = replace(CONFIG, run_dir=str(run_dir), **changes)
    return mc.train(env, SMALL, config, progress=False, resume=resume)


def network_of(result: mc.Result) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = torch.load(result.run_dir / "checkpoints" / "agent_0.pt")["network"]
    return found


def test_a_serial_run_repeats_itself_and_goes_on(tmp_path: Path) -> None:
    first, second = (train(tmp_path / name) for name in ("a", "b"))
    assert first.updates["agent_0"] > 40
    assert all(map(torch.equal, network_of(first).values(), network_of(second).values()))
    more = train(tmp_path / "a", resume=first.run_dir, total_steps=1_600)
    assert more.updates["agent_0"] > first.updates["agent_0"]


def test_windows_that_no_lane_holds_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sequence: expected a lane of at least 27 rows"):
        train(tmp_path / "run", replay=mc.ReplayConfig(capacity=100))


def test_returns_that_the_algorithm_makes_itself_are_not_asked_of_the_learner(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^learner.n_step: expected the default 3, since R2D2, .* itself, got 4$"):
        train(tmp_path / "run", learner=replace(CONFIG.learner, n_step=4))


@pytest.mark.long
def test_an_evaluated_run_keeps_the_best_memory(tmp_path: Path) -> None:
    """Its evaluations, and those of its directory, act with memory: they answer what the last observation hides."""
    algorithm = mc.R2D2(hidden=(32, 32), units=24, length=8, burn_in=0, period=8, learning_rate=2e-3)
    evaluation = mc.EvaluationConfig(interval=4_000, episodes=40)
    config = replace(
        CONFIG, run_dir=str(tmp_path / "run"), total_steps=16_000, updates_per_step=0.1, evaluation=evaluation
    )
    config = replace(config, learner=replace(config.learner, batch_size=32))
    result = mc.train(lambda: Recall(cues=2, delay=3), algorithm, config, progress=False)
    rows = read_metrics(result.run_dir / "metrics.csv")
    assert max(row.value for row in rows if row.name == "eval_return") > 0.95
    best = mc.evaluate(result.run_dir, episodes=200, which="best")
    assert best.mean["agent_0"] > 0.95
    policy, env = mc.load_policy(result.run_dir, "agent_0", "best"), Recall(cues=2, delay=3)
    right, reward = 0.0, 0.0
    for episode in range(50):
        policy.reset()
        obs, _ = env.reset(seed=episode)
        over = False
        while not over:
            obs, reward, over, _, _ = env.step(np.int64(policy.act(obs, reward=reward)))
        right += reward
    assert right > 45


@pytest.mark.long
def test_killed_workers_of_an_async_run_are_succeeded(tmp_path: Path) -> None:
    supervision = mc.SupervisionConfig(backoff=0.0)
    config = replace(CONFIG, run_dir=str(tmp_path / "run"), mode="async", total_steps=20_000, supervision=supervision)
    with mc.start("recall", SMALL, config) as run:
        while run.status().updates["agent_0"] < 20:
            time.sleep(0.05)
        assert run._session is not None
        for name in ("actor-0", "learner-agent_0"):
            os.kill(run._session.control.notes[name].load(PID), signal.SIGKILL)
        result = run.wait(1800)
    assert result.restarts == {"actor-0": 1, "learner-agent_0": 1}
    assert result.updates["agent_0"] > 0.04 * 20_000 * 0.9
