"""Whole runs of TD3 and SAC: what actors explore, what is published, resumption, everything together, and learning."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from crowd import Crowd
from odd_spaces import Counting
from seams import without_limits

import marlcore as mc
from marlcore.training import read_metrics
from marlcore.training.after.loaded_policy import SavedRun
from marlcore.training.loops import build_model

pytestmark = pytest.mark.usefixtures("undrawn", "shared_fork_server")

BOTH = pytest.mark.parametrize("algorithm", [mc.TD3, mc.SAC])
MODES = pytest.mark.parametrize("mode", ["serial", pytest.param("async", marks=pytest.mark.long)])
CONFIG = mc.Config(
    total_steps=1_200,
    mode="serial",
    actor=mc.ActorConfig(envs=3, sync_interval=4),
    learner=mc.LearnerConfig(batch_size=16, warmup=100, n_step=1, log_interval=10, publish_interval=5, device="cpu"),
    updates_per_step=0.2,
    updates_tolerance=8,
)


class Naming(Crowd):
    """Each agent sees a number in [-1, 1] and is paid minus its distance to the second half of its action."""

    def __init__(self, agents: int = 1) -> None:
        super().__init__(agents)
        self._do = gymnasium.spaces.Box(np.float32([0, -1]), np.float32([5, 1]))

    def step(self, actions: dict[str, Any]) -> Any:
        assert all(self._do.contains(action) for action in actions.values())
        numbers = dict(zip(self.possible_agents, self._numbers[:, 0].tolist(), strict=True))
        told = super().step(dict.fromkeys(actions, 0))
        rewards = {agent: -abs(float(action[1]) - numbers[agent]) for agent, action in actions.items()}
        return told[0], rewards, *told[2:]


def train(tmp_path: Path, algorithm: Any, env_fn: Any = Naming, **changes: Any) -> mc.Result:
    return mc.train(env_fn, algorithm, replace(CONFIG, run_dir=str(tmp_path / "run"), **changes), progress=False)


@dataclass(frozen=True)
class NotingTD3(mc.TD3):
    """TD3 that stores in each row the numbers by which it acted."""

    def transition(self, spaces: mc.Spaces) -> mc.TransitionSpec:
        return replace(super().transition(spaces), extras={"epsilon": mc.Field(), "noise": mc.Field()})

    def act(self, model: Any, obs: Any, *, explore: Any, **others: Any) -> mc.Action:
        chosen = super().act(model, obs, explore=explore, **others)
        given = {name: np.full(len(chosen.action), explore[name], np.float32) for name in ("epsilon", "noise")}
        return chosen._replace(extras=given)


def numbers_by_version(run_dir: Path) -> dict[int, set[tuple[float, float]]]:
    """The pairs of epsilon and noise in the rows of each version of the weights."""
    found: dict[int, set[tuple[float, float]]] = {}
    with mc.ReplayBuffer.load(run_dir / "checkpoints" / "agent_0.replay") as replay, without_limits():
        sampler = replay.sampler(512, n_step=1, seed=0, min_size=1)
        for _ in range(20):
            batch = sampler.sample()
            pairs = zip(batch.extras["epsilon"].tolist(), batch.extras["noise"].tolist(), strict=True)
            for version, pair in zip(batch.policy_version.tolist(), pairs, strict=True):
                found.setdefault(version, set()).add(pair)
    return found


@MODES
def test_actors_draw_uniformly_until_the_first_update_and_then_add_noise(tmp_path: Path, mode: str) -> None:
    result = train(tmp_path, NotingTD3(noise=0.25), mode=mode, replay=mc.ReplayConfig(save=True))
    by_version = numbers_by_version(result.run_dir)
    assert by_version.pop(1) == {(1.0, 0.25)}, "the first version's learner has made no update"
    assert len(by_version) > 10 and set().union(*by_version.values()) == {(0.0, 0.25)}
    metrics = read_metrics(result.run_dir / "metrics.csv")
    assert {metric.value for metric in metrics if metric.name == "noise"} == {0.25}
    policy = SavedRun.of(result.run_dir).policy("agent_0")
    assert policy._numbers == {"epsilon": 0.0, "noise": 0.25}


def test_the_configurations_schedules_replace_the_algorithms(tmp_path: Path) -> None:
    exploration = mc.ExplorationConfig(epsilon=0.5, schedules={"noise": mc.Linear(1.0, 0.0, 1_000)})
    result = train(tmp_path, NotingTD3(), exploration=exploration, replay=mc.ReplayConfig(save=True))
    by_version = numbers_by_version(result.run_dir)
    assert {epsilon for pairs in by_version.values() for epsilon, _ in pairs} == {0.5}
    noises = [max(noise for _, noise in by_version[version]) for version in sorted(by_version)]
    assert noises[0] == 1.0 and noises == sorted(noises, reverse=True) and noises[-1] < 0.1


@BOTH
def test_only_the_policy_is_published(tmp_path: Path, algorithm: Any) -> None:
    policy = SavedRun.of(train(tmp_path, algorithm(), total_steps=200).run_dir).policies[0]
    model = build_model(policy, CONFIG, 0)
    assert {name.split(".")[1] for name in model.acting.state_dict()} == {"torso", "output"}
    assert len(model.whole.state_dict()) > len(model.acting.state_dict())


def leaves(state: Any) -> list[Any]:
    """Every value of nested dicts and lists."""
    if isinstance(state, dict):
        return [leaf for key in state for leaf in leaves(state[key])]
    return [leaf for one in state for leaf in leaves(one)] if isinstance(state, (list, tuple)) else [state]


@pytest.mark.parametrize("algorithm", [pytest.param(mc.TD3, marks=pytest.mark.long), mc.SAC])
def test_a_resumed_run_has_what_was_saved_bit_for_bit(tmp_path: Path, algorithm: Any) -> None:
    """Networks, targets, moments, the temperature, the generator: a run with no further update saves them again."""
    first = train(tmp_path, algorithm())
    path = first.run_dir / "checkpoints" / "agent_0.pt"
    before = torch.load(path)
    more = mc.train(
        Naming, algorithm(), replace(CONFIG, total_steps=first.steps + 1), progress=False, resume=first.run_dir
    )
    after = torch.load(path)
    assert more.steps > first.steps and more.updates == first.updates
    assert before["trainer"].keys() == after["trainer"].keys() and before["network"].keys() == after["network"].keys()
    pairs = list(zip(leaves(before["trainer"]), leaves(after["trainer"]), strict=True))
    pairs += zip(leaves(before["network"]), leaves(after["network"]), strict=True)
    assert len(pairs) > 50
    assert all(torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two for one, two in pairs)


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_everything_a_learner_draws_works_together(tmp_path: Path, algorithm: Any, mode: str) -> None:
    """Nested observations in stacks, 3-step returns, priorities, normalization and a prefetch."""
    config = {
        "mode": mode,
        "learner": replace(CONFIG.learner, n_step=3, obs_norm="running", prefetch=1),
        "replay": mc.ReplayConfig(stack=2, prioritized=True),
    }
    result = train(tmp_path, algorithm(), partial(Counting, gymnasium.spaces.Box(-1, 1, (2,))), **config)
    assert result.updates["agent_0"] > 100
    losses = [metric.value for metric in read_metrics(result.run_dir / "metrics.csv") if metric.name == "loss"]
    assert losses and np.isfinite(losses).all()
    assert np.isfinite(list(mc.evaluate(result.run_dir, episodes=3).mean.values())).all()


@pytest.mark.long
@BOTH
@pytest.mark.parametrize("mode", ["serial", "async"])
def test_two_agents_share_a_policy_that_learns(tmp_path: Path, algorithm: Any, mode: str) -> None:
    """Uniform actions are 0.67 from the number on average: -13.3 in an episode."""
    learner = replace(CONFIG.learner, gamma=0.0, batch_size=64)
    result = train(
        tmp_path, algorithm(reward_scale=1.0), partial(Naming, 2), mode=mode, total_steps=3_000, learner=learner,
        updates_per_step=0.5, policies={"agent_0": "both", "agent_1": "both"},
    )  # fmt: skip
    outcome = mc.evaluate(result.run_dir, episodes=10)
    assert all(mean > -3.0 for mean in outcome.mean.values()), outcome.mean
