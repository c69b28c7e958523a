"""Hindsight as a setting of runs: the environment's functions, both modes, and learning that fails without it."""

from functools import partial
from typing import Any

import bit_flip
import gymnasium
import numpy as np
import pytest
from crowd import Crowd
from refused import check_refused
from whole_runs import LONG, Runs, updating, values_of

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

runs = Runs(
    total_steps=400,
    learner={"n_step": 1, "warmup": 50},
    replay={"hindsight": "future", "hindsight_k": 3},
    exploration={"epsilon": 1.0},
    updates_per_step=0.5,
)


def tell(update: Any, batch: Any) -> mc.Update:
    """Reports what hindsight does to the batch."""
    reached = (batch.next_obs["achieved_goal"] == batch.obs["desired_goal"]).all(1)
    changed = batch.relabelled
    told = {
        "relabelled": changed.float().mean(),
        "reached": reached[changed].float().mean(),
        "reward": batch.reward[changed].mean(),
        "ended": batch.terminated[changed].float().sum(),
        "wrong": ((batch.terminated != reached) | (batch.reward != reached.float() - 1)).float().mean(),
    }
    return mc.Update({**update(batch).metrics, **told})


TELLING = updating(mc.DQN, tell)(hidden=(16,))


class Tagged(bit_flip.BitFlip):
    """Tags episodes even and odd in turn, for the parts of a replay."""

    episodes = 0

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        obs, info = super().reset(**options)
        return obs, info | {"tag": ("even", "odd")[self.episodes % 2]}


@pytest.mark.parametrize(
    ("mode", "replay"),
    [
        pytest.param("serial", {}, marks=LONG),
        pytest.param("serial", {"prioritized": True}, marks=LONG),
        ("serial", {"mixture": {"even": 0.25, "odd": 0.75}}),
        pytest.param("async", {}, marks=LONG),
    ],
)
def test_a_run_relabels_by_the_environments_functions(tmp_path, mode, replay):
    """Every reward is right, also in rows whose episode ended at its goal."""
    env_fn = Tagged if "mixture" in replay else bit_flip.BitFlip
    result = runs.train(tmp_path, env_fn, TELLING, mode=mode, replay=replay)
    relabelled, reached, wrong = (values_of(result.run_dir, n) for n in ("relabelled", "reached", "wrong"))
    assert abs(np.mean(relabelled) - 0.75) < 0.1 and np.mean(reached) > 0.1
    assert not any(wrong)


class Goals(gymnasium.Wrapper):
    """Other functions of goals, as an environment's wrapper may have them."""

    def __init__(self, bits: int, reward: Any) -> None:
        super().__init__(bit_flip.BitFlip(bits))
        self.compute_reward = reward

    def compute_terminated(self, achieved: Any, desired: Any, info: Any) -> bool:
        return False


def sevens(achieved: Any, desired: Any, info: Any) -> Any:
    return np.full(len(achieved), 7.0)


def one(achieved: Any, desired: Any, info: Any) -> float:
    return 7.0


def test_a_wrappers_goal_function_comes_first(tmp_path):
    """Stored ends stay: two bits match often."""
    result = runs.train(tmp_path, partial(Goals, 2, sevens), TELLING)
    assert set(values_of(result.run_dir, "reward")) == {7.0}
    assert any(values_of(result.run_dir, "ended"))


def test_refuses(tmp_path):
    for env_fn, learner, says in (
        (bit_flip.BitFlip, {"n_step": 3}, "learner.n_step: expected 1 when replay.hindsight is set, got 3"),
        (lambda: Crowd(1), {}, "hindsight: expected achieved_goal and desired_goal of one shape and dtype in obs, got"),
        (
            partial(Goals, 10, None), {},
            "replay.hindsight: expected an environment with compute_reward(achieved_goal, desired_goal, info), got",
        ),
        (
            partial(Goals, 10, one), {},
            "replay.hindsight: expected a compute_reward that returns shape [2] for goals of shape [2, 10], got []",
        ),
    ):  # fmt: skip
        check_refused(partial(runs.train, tmp_path, env_fn, learner=learner), ValueError, says)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_dqn_flips_ten_bits_with_hindsight_and_not_without(tmp_path):
    """The control: the same run without hindsight reaches hardly any goal."""
    shares, dqn = {}, mc.DQN(learning_rate=1e-3, hidden=(64,))
    for hindsight in ("future", "off"):
        replay = mc.ReplayConfig(hindsight=hindsight)
        changes: Any = {"evaluation": mc.EvaluationConfig(), "run_dir": str(tmp_path / hindsight)}
        config = bit_flip.settings(mode="serial", total_steps=5_000, replay=replay, **changes)
        shares[hindsight] = bit_flip.solved(mc.train(bit_flip.BitFlip, dqn, config, progress=False))
    assert shares["future"] >= 0.9 and shares["off"] <= 0.2, shares
