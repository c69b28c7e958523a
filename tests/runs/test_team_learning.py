"""Algorithms of teams learn by the reward of both agents what each must do by its own cue."""

from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matching import CUES, STEPS, Matching

import marlcore as mc

ON_POLICY = {"batch_size": 400, "minibatch_size": 200, "learning_rate": 3e-3}
OFF_POLICY = mc.LearnerConfig(warmup=500, n_step=1, gamma=0.9, batch_size=64)
CHOICES = [
    (mc.VDN(learning_rate=2e-3, reward_scale=1.0), 4_000),
    (mc.QMIX(learning_rate=2e-3, reward_scale=1.0), 2_500),
    (mc.QMIX(learning_rate=2e-3, reward_scale=1.0, cell="gru", units=16, length=5, burn_in=0, period=5), 2_500),
    (mc.MATD3(learning_rate=2e-3, reward_scale=1.0), 3_000),
    (mc.MADDPG(learning_rate=1e-3, reward_scale=1.0, shared=False), 5_000),
    (mc.HAPPO(**ON_POLICY), 8_000),
    (mc.COMA(batch_size=100, minibatch_size=50, learning_rate=3e-3, reward_scale=1.0), 8_000),
]
MOVES = [(mc.MATD3(learning_rate=2e-3, reward_scale=1.0), 4_000), (mc.HAPPO(**ON_POLICY), 12_000)]


def returned(env_fn: Any, algorithm: Any, steps: int, run_dir: Path) -> float:
    queued = isinstance(algorithm, (mc.HAPPO, mc.COMA))
    options = {} if queued else {"learner": OFF_POLICY, "updates_per_step": 0.25}
    config = mc.Config(total_steps=steps, mode="serial", run_dir=str(run_dir), actor=mc.ActorConfig(envs=4), **options)
    mc.train(env_fn, algorithm, config, progress=False)
    return mc.evaluate(run_dir, 20).mean["team"]


LEARNERS = [(Matching, 0.8 * STEPS, *each) for each in CHOICES]
LEARNERS += [(partial(Matching, moves=True), -0.1 * STEPS, *each) for each in MOVES]


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("env_fn, least, algorithm, steps", LEARNERS, ids=lambda value: getattr(value, "owner", ""))
def test_both_agents_learn_their_parts(env_fn: Any, least: float, algorithm: Any, steps: int, tmp_path: Path) -> None:
    """Choices are right in four of five steps, where random ones make half of one right. Moves are near: squared
    distances of 0.1 a step in all, where random moves are 1.2 off, and resting is 0.65.
    """
    assert returned(env_fn, algorithm, steps, tmp_path / "run") >= least


@pytest.mark.long
@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("rewards", ["own", "sum"])
def test_opponents_learn_by_their_own_rewards_alone(rewards: str, tmp_path: Path) -> None:
    """The control is the sum of the rewards, which is always 0."""
    algorithm = mc.MATD3(learning_rate=2e-3, reward_scale=1.0, rewards=rewards)
    returned(partial(Matching, opposed=True), algorithm, 2_500, tmp_path / "run")
    policy, right = mc.load_policy(tmp_path / "run", "team"), 0
    for cues in product(range(CUES), repeat=2):
        obs = {"members": np.eye(CUES, dtype=np.float32)[[*cues]], "alive": np.ones(2, np.int8)}
        right += tuple(policy.act(obs)) == cues
    assert right == CUES**2 if rewards == "own" else right < CUES
