"""Whole runs of recurrent policies: they repeat themselves, go on, are evaluated, and survive kills."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import until
from whole_runs import LONG, Runs, checkpoint, kill, values_of

import marlcore as mc
from marlcore.envs import Recall

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
train = Runs(CONFIG).train


def test_a_serial_run_repeats_itself_and_goes_on(tmp_path: Path) -> None:
    first, second = (train(tmp_path / name, "recall", SMALL) for name in ("a", "b"))
    assert first.updates["agent_0"] > 40
    networks = [checkpoint(result.run_dir)["network"] for result in (first, second)]
    assert all(map(torch.equal, networks[0].values(), networks[1].values()))
    more = train(tmp_path / "a", "recall", SMALL, resume=True, total_steps=1_600)
    assert more.updates["agent_0"] > first.updates["agent_0"]


def test_windows_that_no_lane_holds_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"sequence: expected a lane of at least 27 rows"):
        train(tmp_path, "recall", SMALL, replay=mc.ReplayConfig(capacity=100))


@LONG
def test_an_evaluated_run_keeps_the_best_memory(tmp_path: Path) -> None:
    """Its evaluations, and those of its directory, act with memory: they answer what the last observation hides."""
    algorithm = mc.R2D2(hidden=(32, 32), units=24, length=8, burn_in=0, period=8, learning_rate=2e-3)
    result = train(
        tmp_path, partial(Recall, cues=2, delay=3), algorithm, total_steps=16_000, updates_per_step=0.1,
        evaluation=mc.EvaluationConfig(interval=4_000, episodes=40), learner=replace(CONFIG.learner, batch_size=32),
    )  # fmt: skip
    assert max(values_of(result.run_dir, "eval_return")) > 0.95
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


@LONG
def test_killed_workers_of_an_async_run_are_succeeded(tmp_path: Path) -> None:
    supervision = mc.SupervisionConfig(backoff=0.0)
    run = Runs(CONFIG).start(tmp_path, "recall", SMALL, mode="async", total_steps=20_000, supervision=supervision)
    with run:
        until(lambda: run.status().updates["agent_0"] >= 20)
        for name in ("actor-0", "learner-agent_0"):
            kill(run, name)
        result = run.wait(1800)
    assert result.restarts == {"actor-0": 1, "learner-agent_0": 1}
    assert result.updates["agent_0"] > 0.04 * 20_000 * 0.9
