"""Whole runs of TD3 and SAC: what actors explore, what is published, resumption, everything together, and learning."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from crowd import Naming
from odd_spaces import Counting
from whole_runs import LONG, MODES, Runs, saved_replay, values_of

import marlcore as mc
from marlcore.training.after.loaded_policy import SavedRun
from marlcore.training.workers.blueprint import build_model

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

BOTH = pytest.mark.parametrize("algorithm", [mc.TD3, mc.SAC])
runs = Runs(
    total_steps=1_200,
    actor={"envs": 3, "sync_interval": 4},
    learner={"warmup": 100, "n_step": 1, "publish_interval": 5},
    updates_per_step=0.2,
    updates_tolerance=8,
)
train = runs.train


@dataclass(frozen=True)
class NotingTD3(mc.TD3):
    """TD3 that stores in each row the numbers by which it acted."""

    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        return replace(super().transition(spaces), extras={"epsilon": mc.Field(), "noise": mc.Field()})

    def act(self, model: Any, obs: Any, *, explore: Any, **others: Any) -> mc.Action:
        chosen = super().act(model, obs, explore=explore, **others)
        extras = {name: np.full(len(chosen.action), explore[name], np.float32) for name in ("epsilon", "noise")}
        return chosen._replace(extras=extras)


def numbers_by_version(run_dir: Path) -> dict[int, set[tuple[float, float]]]:
    """The pairs of epsilon and noise in the rows of each version of the weights."""
    pairs_by_version: dict[int, set[tuple[float, float]]] = {}
    with saved_replay(run_dir) as replay:
        sampler = replay.sampler(512, n_step=1, seed=0, min_size=1)
        for _ in range(20):
            batch = sampler.sample()
            pairs = zip(batch.extras["epsilon"].tolist(), batch.extras["noise"].tolist(), strict=True)
            for version, pair in zip(batch.policy_version.tolist(), pairs, strict=True):
                pairs_by_version.setdefault(version, set()).add(pair)
    return pairs_by_version


@MODES
def test_actors_draw_uniformly_until_the_first_update_and_then_add_noise(tmp_path: Path, mode: str) -> None:
    result = train(tmp_path, Naming, NotingTD3(noise=0.25), mode=mode, replay=mc.ReplayConfig(save=True))
    by_version = numbers_by_version(result.run_dir)
    assert by_version.pop(1) == {(1.0, 0.25)}, "the first version's learner has made no update"
    assert len(by_version) > 10 and set().union(*by_version.values()) == {(0.0, 0.25)}
    assert set(values_of(result.run_dir, "noise")) == {0.25}
    policy = mc.load_policy(result.run_dir, "agent_0")
    assert policy._numbers == {"epsilon": 0.0, "noise": 0.25}


def test_the_configurations_schedules_replace_the_algorithms(tmp_path: Path) -> None:
    exploration = mc.ExplorationConfig(epsilon=0.5, schedules={"noise": mc.Linear(1.0, 0.0, 1_000)})
    result = train(tmp_path, Naming, NotingTD3(), exploration=exploration, replay=mc.ReplayConfig(save=True))
    by_version = numbers_by_version(result.run_dir)
    assert {epsilon for pairs in by_version.values() for epsilon, _ in pairs} == {0.5}
    noises = [max(noise for _, noise in by_version[version]) for version in sorted(by_version)]
    assert noises[0] == 1.0 and noises == sorted(noises, reverse=True) and noises[-1] < 0.1


@BOTH
def test_only_the_policy_is_published(tmp_path: Path, algorithm: Any) -> None:
    policy = SavedRun.of(train(tmp_path, Naming, algorithm(), total_steps=200).run_dir).policies[0]
    model = build_model(policy, runs.config, 0)
    assert {name.split(".")[1] for name in model.acting.state_dict()} == {"torso", "output"}
    assert len(model.whole.state_dict()) > len(model.acting.state_dict())


@LONG
@BOTH
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_everything_a_learner_draws_works_together(tmp_path: Path, algorithm: Any, mode: str) -> None:
    """Nested observations in stacks, 3-step returns, priorities, normalization and a prefetch."""
    result = train(
        tmp_path, partial(Counting, gymnasium.spaces.Box(-1, 1, (2,))), algorithm(), mode=mode,
        learner={"n_step": 3, "obs_norm": "running", "prefetch": 1},
        replay=mc.ReplayConfig(stack=2, prioritized=True),
    )  # fmt: skip
    assert result.updates["agent_0"] > 100
    losses = values_of(result.run_dir, "loss")
    assert losses and np.isfinite(losses).all()
    assert np.isfinite(list(mc.evaluate(result.run_dir, episodes=3).mean.values())).all()


@LONG
@BOTH
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_two_agents_share_a_policy_that_learns(tmp_path: Path, algorithm: Any, mode: str) -> None:
    """Uniform actions are 0.67 from the number on average: -13.3 in an episode."""
    learner = {"gamma": 0.0, "batch_size": 64}
    result = train(
        tmp_path, partial(Naming, 2), algorithm(reward_scale=1.0), mode=mode, total_steps=3_000, learner=learner,
        updates_per_step=0.5, policies={"agent_0": "both", "agent_1": "both"},
    )  # fmt: skip
    outcome = mc.evaluate(result.run_dir, episodes=10)
    assert all(mean > -3.0 for mean in outcome.mean.values()), outcome.mean
