"""run_experiment_mp on sorrel itself, in the environment that `python -m bench install sorrel` makes."""

from __future__ import annotations

import random
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sorrel_double as double
import torch

from marlcore.compat import sorrel

REASON = "sorrel is not installed: `python -m bench install sorrel` makes an environment in which this test runs"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("sorrel", reason=REASON)
    from sorrel import buffers
    from sorrel.examples.treasurehunt.agents import TreasurehuntAgent
    from sorrel.examples.treasurehunt.entities import EmptyEntity
    from sorrel.examples.treasurehunt.env import TreasurehuntEnv
    from sorrel.examples.treasurehunt.world import TreasurehuntWorld
    from sorrel.examples.treasurehunt_threadsafe import entities as threadsafe_entities
    from sorrel.examples.treasurehunt_threadsafe import env as threadsafe_env
    from sorrel.examples.treasurehunt_threadsafe import world as threadsafe_world
    from sorrel.models.base_model import BaseModel
    from sorrel.models.pytorch.ppo import PyTorchPPO, RolloutBuffer
    from sorrel.models.pytorch.transformer import VisionTransformer
    from sorrel.utils.logging import Logger, TensorboardLogger

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]

TURNS = 20
WORLD = {"height": 9, "width": 9, "gem_value": 10, "food_value": 5, "bone_value": -10, "spawn_prob": 0.02}


def config(epochs: int, radius: int = 2) -> dict[str, Any]:
    return {
        "experiment": {"epochs": epochs, "max_turns": TURNS, "record_period": 5},
        "model": {"agent_vision_radius": radius, "epsilon_decay": 0.01, "num_agents": 2, "save_weights": True},
        "world": WORLD,
    }


def hunt(epochs: int, radius: int = 2) -> Any:
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    given = config(epochs, radius)
    return TreasurehuntEnv(TreasurehuntWorld(given, EmptyEntity()), given)


def test_the_doubles_buffer_is_sorrels(tmp_path: Path) -> None:
    """What the tests of every checkout compare with has sorrel's rules."""
    for n_frames in (1, 3):
        theirs, ours = (kind(20, (2,), n_frames) for kind in (buffers.Buffer, double.Buffer))
        for t in range(70):
            for one in (theirs, ours):
                if t % 11 == 0:
                    one.add_empty()
                one.add(np.full(2, t), t % 3, t / 2, t % 11 == 10)
            mine, other = ((one.idx, one.size, one.last_transition(1)) for one in (theirs, ours))
            assert mine == other
            np.testing.assert_array_equal(theirs.current_state(), ours.current_state())
            if t > 10:
                drawn = []
                for one in (theirs, ours):
                    np.random.seed(t)
                    drawn.append(one.sample(4))
                for mine, other in zip(*drawn, strict=True):
                    np.testing.assert_array_equal(mine, other)


def test_treasurehunt_runs_unchanged(tmp_path: Path) -> None:
    env = hunt(epochs=14)
    before = env.agents[0].model.qnetwork_local.head1.weight.detach().clone()
    logger = TensorboardLogger(14, tmp_path / "logs")
    done = sorrel.run_experiment_mp(env, logger=logger, seed=0, output_dir=tmp_path)
    assert (done.epochs, done.steps, done.updates, done.restarts) == (15, 15 * TURNS * 2, 30, 0)
    assert len(logger.losses) == len(logger.rewards) == 15 and logger._global_step == 15 * TURNS
    assert list(logger.additional_values) == ["turn_reward_mean", "turn_reward_max"]
    model = env.agents[0].model
    assert model.epsilon == pytest.approx(0.6 * 0.99**15)
    assert not torch.equal(model.qnetwork_local.head1.weight, before)
    assert model.models["local"] is model.qnetwork_local and len(model.optimizer.state) == 16
    assert type(model.memory) is buffers.Buffer and model.memory.size == 15 * (TURNS + 1)
    assert model.memory.extra_data["positions"].any()
    assert len(list((tmp_path / "checkpoints").iterdir())) >= 2
    env.run_experiment(animate=False, logger=Logger(14), output_dir=tmp_path)


class OnPolicyAgent(TreasurehuntAgent):
    def act(self, world: Any, action: Any) -> float:
        return float(super().act(world, int(action[0])))


def test_ppo_learns_from_its_rollouts(tmp_path: Path) -> None:
    env = hunt(epochs=10)
    for agent in env.agents:
        agent.__class__ = OnPolicyAgent
        sizes = agent.observation_spec.input_size, agent.action_spec.n_actions
        agent.model = PyTorchPPO(*sizes, 32, 0.0, "cpu", 0.01, 0.2, 0.9, 3, 1e-3, 1e-3, TURNS)
    before = [agent.model.policy.actor[0].weight.detach().clone() for agent in env.agents]
    done = sorrel.run_experiment_mp(env, logger=Logger(10), seed=0, output_dir=tmp_path, actors=2)
    assert (done.epochs, done.updates, done.restarts) == (11, 22, 0) and np.isfinite(done.losses).all()
    for agent, weight in zip(env.agents, before, strict=True):
        assert not torch.equal(agent.model.policy.actor[0].weight, weight)
        assert type(agent.model.memory) is RolloutBuffer and len(agent.model.memory.log_probs) == TURNS
        assert agent.model.memory.log_probs.all()
    env.run_experiment(animate=False, logger=Logger(10), output_dir=tmp_path)


class Actor(VisionTransformer, BaseModel):
    """sorrel's transformer, which learns to predict states and actions, with what a model of an agent needs."""

    def __init__(self, state_size: tuple[int, ...], actions: int) -> None:
        memory = buffers.TransformerBuffer(200, (int(np.prod(state_size)),), 3)
        super().__init__(state_size, actions, 16, 3, 3, 8, 1, 2, memory, 1e-2, "cpu", 0)
        self.epsilon = 0.5

    def take_action(self, state: Any) -> int:
        states = torch.from_numpy(state).float().view(1, 3, *self.state_size)
        with torch.no_grad():
            _, actions = self(states, torch.zeros(1, 3, 1, dtype=torch.int64))
        return int(torch.distributions.Categorical(logits=actions[0, -1]).sample())

    def start_epoch_action(self, **kwargs: Any) -> None:
        self.memory.add_empty()

    def train_step(self) -> Any:
        return np.sum(self.train_model("random")) if len(self.memory) >= 12 else np.array(0.0)


def test_the_transformer_learns_from_sequences_of_its_agent(tmp_path: Path) -> None:
    env = hunt(epochs=30, radius=4)
    for agent in env.agents:
        agent.model = Actor((6, 9, 9), agent.action_spec.n_actions)
    before = env.agents[0].model.state_head.weight.detach().clone()
    done = sorrel.run_experiment_mp(env, logger=Logger(30), seed=0, output_dir=tmp_path, copies=2)
    assert (done.epochs, done.updates, done.restarts) == (31, 62, 0)
    assert np.isfinite(done.losses).all() and np.mean(done.losses[-5:]) < np.mean(done.losses[4:9])
    assert not torch.equal(env.agents[0].model.state_head.weight, before)
    assert type(env.agents[0].model.memory) is buffers.TransformerBuffer
    env.run_experiment(animate=False, logger=Logger(30), output_dir=tmp_path)


def test_threadsafe_models_act_with_the_newest_weights(tmp_path: Path) -> None:
    """They act with a snapshot of the policy, which is renewed where their version changes; all agents share one."""
    given = config(epochs=8)
    world = threadsafe_world.TreasurehuntWorld(given, threadsafe_entities.EmptyEntity())
    env = threadsafe_env.TreasurehuntEnv(world, given)
    done = sorrel.run_experiment_mp(env, logger=Logger(8), seed=0, output_dir=tmp_path)
    assert done.updates == 9 * len(env.agents) == 18
    assert env.agents[0].model is env.agents[1].model is env.shared_model
    assert env.agents[0].model._lock.acquire(blocking=False)
    env.agents[0].model._lock.release()
