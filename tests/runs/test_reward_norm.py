"""Normalized rewards: by the deviation of the discounted returns so far, as Stable-Baselines3 does it."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from batches import made_windows
from crowd import Crowd
from whole_runs import LONG, Runs, checkpoint, updating

import marlcore as mc

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

GAMMA = 0.9
runs = Runs(total_steps=600)
ON_POLICY = mc.LearnerConfig(gamma=GAMMA, reward_norm="running", log_interval=4, device="cpu")


class Rich(Crowd):
    def __init__(self) -> None:
        super().__init__(1)

    def step(self, actions: dict[str, int]) -> Any:
        obs, rewards, *others = super().step(actions)
        return obs, {agent: 500 * reward for agent, reward in rewards.items()}, *others


def batches_of(tmp_path: Path, copies: int) -> list[Any]:
    """The batches of a run of PPO, each transition once and in order; the network has not learned to please."""
    batches: list[Any] = []

    def noted(update: Any, batch: Any) -> mc.Update:
        fields = {name: getattr(batch, name).clone().numpy() for name in ("reward", "raw_reward", "index")}
        fields |= {"over": (batch.terminated | batch.truncated).numpy().copy()}
        batches.append(SimpleNamespace(**fields, returns=batch.extras["discounted_return"].clone().numpy()))
        return update(batch)

    algorithm = updating(mc.PPO, noted)(batch_size=60, minibatch_size=60, epochs=1)
    runs.train(tmp_path, Rich, algorithm, actor=mc.ActorConfig(envs=copies), learner=ON_POLICY)
    assert len(batches) > 5
    return batches


def test_rows_hold_the_discounted_rewards_so_far(tmp_path: Path) -> None:
    copies = 3
    batches = batches_of(tmp_path, copies)
    running, seen = np.zeros(copies), np.zeros(0)
    for batch in batches:
        rows = zip(batch.index % copies, batch.raw_reward, batch.over, batch.returns, strict=True)
        for lane, reward, over, noted in rows:
            running[lane] = running[lane] * GAMMA + reward
            np.testing.assert_allclose(noted, running[lane], rtol=1e-5)
            running[lane] *= not over
        seen = np.append(seen, batch.returns.astype(np.float64))
        np.testing.assert_allclose(batch.reward, batch.raw_reward / np.sqrt(seen.var() + 1e-8), rtol=1e-5)
    state = checkpoint(tmp_path / "run")["reward_norm"]
    assert {name: values.shape for name, values in state.items()} == dict.fromkeys(
        ("count", "batches", "mean_discounted_return", "variance_discounted_return"), torch.Size()
    )
    np.testing.assert_allclose(state["variance_discounted_return"], seen.var(), rtol=1e-5)


def test_rewards_are_those_of_stable_baselines3(tmp_path: Path) -> None:
    common = pytest.importorskip("stable_baselines3.common.vec_env", reason="needs stable-baselines3")
    env = common.DummyVecEnv([lambda: gymnasium.make("CartPole-v1")])
    theirs = common.VecNormalize(env, norm_obs=False, gamma=GAMMA)
    for batch in batches_of(tmp_path, 1):
        for reward, over in zip(batch.raw_reward, batch.over, strict=True):
            theirs._update_reward(np.array([reward]))
            theirs.returns[:] *= not over
        np.testing.assert_allclose(batch.reward, theirs.normalize_reward(batch.raw_reward), rtol=1e-4)


RECURRENT = mc.R2D2(hidden=(8, 8), units=6, length=8, burn_in=2, period=6)


@pytest.mark.parametrize("mode", ["serial", pytest.param("async", marks=LONG)])
@pytest.mark.parametrize("algorithm", [pytest.param(mc.DQN(actor_priorities=True), marks=LONG), RECURRENT])
def test_frozen_statistics_stay_and_a_resumed_run_keeps_them(tmp_path: Path, algorithm: Any, mode: str) -> None:
    frozen = {"reward_norm": "frozen", "obs_norm": "frozen", "norm_frozen_after": 300, "n_step": 1}
    settings = {"mode": mode, "learner": frozen, "replay": {"prioritized": True}}
    runs.train(tmp_path, Rich, algorithm, **settings)
    before = checkpoint(tmp_path / "run")
    assert 300 <= before["reward_norm"]["count"] == before["norm"]["count"] < 300 + 16 * 8
    runs.train(tmp_path, Rich, algorithm, resume=True, **{**settings, "total_steps": 900})
    after = checkpoint(tmp_path / "run")
    assert after["updates"] > before["updates"]
    assert {**after["reward_norm"], **after["norm"]} == {**before["reward_norm"], **before["norm"]}
    assert mc.load_policy(tmp_path / "run", "agent_0").act(np.zeros(1, np.float32)) in (0, 1)


def test_recurrent_inputs_are_the_rewards_that_actors_saw() -> None:
    spaces = mc.Spaces(gymnasium.spaces.Box(-10, 10, (3,), np.float32), gymnasium.spaces.Discrete(4))
    hyper = mc.R2D2(hidden=(8, 8), units=6, length=12, burn_in=4, period=8)
    priorities = []
    for scale in (1.0, 5.0):
        torch.manual_seed(0)
        trainer = hyper.make_trainer(hyper.make_model(spaces))
        windows = made_windows(hyper, spaces, seed=0).torch()
        windows.raw_reward = windows.reward * scale
        priorities.append(trainer.update(windows).priority)
    assert not torch.equal(*priorities)


@LONG
@pytest.mark.parametrize("reward_norm", ["off", "running"])
def test_large_rewards_are_learned_only_with_normalization(tmp_path: Path, reward_norm: str) -> None:
    algorithm = mc.PPO(learning_rate=3e-4, normalize_values=False, batch_size=200, minibatch_size=50)
    learner = replace(ON_POLICY, reward_norm=reward_norm)
    result = runs.train(tmp_path, Rich, algorithm, total_steps=6_000, actor=mc.ActorConfig(envs=2), learner=learner)
    learned = result.returns["agent_0"] > 17 * 500  # 20 is perfect, 10 is chance
    assert learned == (reward_norm == "running"), result.returns
