"""Whole runs of each codebase, short ones: they print returns as CleanRL's scripts do, `episodic_return=`."""

import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import marlcore as mc

from .edits import Edited, embed
from .patches import Patch

ATARI = "--env-id BreakoutNoFrameskip-v4 --total-timesteps 50000 --learning-starts 10000 --buffer-size 50000"
PENDULUM = "--env-id Pendulum-v1 --total-timesteps 11000 --learning-starts 1000 --batch-size 64"
FORAGING = "--config=vdn --env-config=gymma with env_args.time_limit=25 env_args.key=lbforaging:Foraging-5x5-2p-1f-v3"
FORAGING += " t_max=2000 test_interval=2000 log_interval=500 runner_log_interval=500 test_nepisode=10"
SCRIPTS = {  # with their arguments; the seed is added
    "CleanRL, Rainbow": f"{ATARI} --target-network-frequency 1000 --learning-rate 2.5e-4 --seed",
    "CleanRL, SAC": f"{PENDULUM} --seed",
    "CleanRL, SAC with two actors": f"{PENDULUM} --seed",
    "JAX loop": "--total-timesteps 10000 --learning-starts 1000 --seed",
    "EPyMARL": f"{FORAGING} epsilon_anneal_time=1000 use_cuda=False common_reward=True seed=",
}


def play(name: str, patch: Patch, sources: Path, edited: bool, seed: int, folder: Path) -> None:
    """A run of a script as `__main__`, or of a package, by one thread; scripts lie in `folder`."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    path = sources / patch.file
    if edited:
        sys.meta_path.insert(0, Edited(patch.module, path, patch.edits))
    if name not in SCRIPTS:
        PLAYS[name](import_module(patch.module), edited, seed)
        return
    sys.argv = f"{path.name} {SCRIPTS[name]} {seed}".replace("= ", "=").split()
    if name == "EPyMARL":
        script = path.with_name("main.py")
    else:
        script = folder / path.name
        script.write_text(embed(path.read_text(), patch.edits) if edited else path.read_text())
    if "NoFrameskip" in SCRIPTS[name]:
        import_module("ale_py")  # whose import registers the games
    runpy.run_path(str(script), run_name="__main__")


def play_tianshou(module: Any, edited: bool, seed: int) -> None:
    from tianshou.highlevel.config import OffPolicyTrainingConfig
    from tianshou.highlevel.env import EnvFactoryRegistered, VectorEnvType
    from tianshou.highlevel.experiment import DQNExperimentBuilder, ExperimentConfig
    from tianshou.highlevel.params.algorithm_params import DQNParams

    env = EnvFactoryRegistered(task="CartPole-v1", venv_type=VectorEnvType.DUMMY)
    config = ExperimentConfig(seed=seed, persistence_enabled=False, watch=False)
    training = OffPolicyTrainingConfig(
        max_epochs=2, epoch_num_steps=4_000, num_training_envs=8, num_test_envs=8, buffer_size=20_000,
        collection_step_num_env_steps=8, update_step_num_gradient_steps_per_sample=0.25, start_timesteps=1_000,
    )  # fmt: skip
    params = DQNParams(lr=1e-3, eps_training=0.1, n_step_return_horizon=3, target_update_freq=320)
    builder = DQNExperimentBuilder(env, config, training).with_dqn_params(params)
    result = builder.with_model_factory_default((64, 64)).build().run()
    print(f"episodic_return={result.trainer_result.best_reward}")


def pfrl_buffer(module: Any, edited: bool, capacity: int) -> Any:
    """A buffer of CartPole's transitions and three steps: PFRL's own or, where its module is edited, marlcore's."""
    if not edited:
        return import_module("pfrl").replay_buffers.ReplayBuffer(capacity, num_steps=3)
    spec = mc.TransitionSpec(mc.Field((4,)), mc.Field((), "int64"))
    return module.Lanes(mc.ReplayBuffer.create(spec, capacity), n_step=3, gamma=0.99)


def play_pfrl(module: Any, edited: bool, seed: int) -> None:
    import gymnasium
    import pfrl

    env, buffer = gymnasium.make("CartPole-v1"), pfrl_buffer(module, edited, 20_000)
    layers = nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2)
    network = nn.Sequential(*layers, pfrl.q_functions.DiscreteActionValueHead())
    pick = pfrl.explorers.LinearDecayEpsilonGreedy(1.0, 0.05, 2_000, env.action_space.sample)
    usual = {"replay_start_size": 1_000, "update_interval": 2, "target_update_interval": 500}
    agent = pfrl.agents.DoubleDQN(network, torch.optim.Adam(network.parameters(), 1e-3), buffer, 0.99, pick, **usual)
    (obs, _), total = env.reset(seed=seed), 0.0
    for _ in range(6_000):
        obs, reward, terminated, truncated, _ = env.step(agent.act(obs))
        total += float(reward)
        agent.observe(obs, reward, terminated, terminated or truncated)
        if terminated or truncated:
            print(f"episodic_return={total}")
            (obs, _), total = env.reset(), 0.0


def play_lerobot(module: Any, edited: bool, seed: int) -> None:
    """Trains LeRobot's SAC on Pendulum, by its own trainer, in one process."""
    import gymnasium
    from lerobot.configs.types import FeatureType, PolicyFeature
    from lerobot.policies.gaussian_actor.configuration_gaussian_actor import GaussianActorConfig
    from lerobot.policies.gaussian_actor.modeling_gaussian_actor import GaussianActorPolicy
    from lerobot.rl.algorithms.sac import SACAlgorithm, SACAlgorithmConfig
    from lerobot.rl.data_sources import OnlineOfflineMixer
    from lerobot.rl.trainer import RLTrainer

    state, action = PolicyFeature(FeatureType.STATE, (3,)), PolicyFeature(FeatureType.ACTION, (1,))
    limits = {
        "observation.state": {"min": [-1.0, -1.0, -8.0], "max": [1.0, 1.0, 8.0]},
        "action": {"min": [-2.0], "max": [2.0]},
    }
    config = GaussianActorConfig(
        input_features={"observation.state": state}, output_features={"action": action}, dataset_stats=limits,
        device="cpu",
    )  # fmt: skip
    policy = GaussianActorPolicy(config).train()
    buffer = module.ReplayBuffer(20_000, "cpu", ["observation.state"], use_drq=False)
    algorithm = SACAlgorithm(policy=policy, config=SACAlgorithmConfig.from_policy_config(config))
    trainer = RLTrainer(algorithm, OnlineOfflineMixer(buffer), 64)
    env = gymnasium.make("Pendulum-v1")
    scale = torch.tensor([1.0, 1.0, 8.0])
    (obs, _), total = env.reset(seed=seed), 0.0
    for step in range(1_000):
        given = {"observation.state": torch.from_numpy(obs)[None] / scale}
        chosen = torch.rand(1, 1) * 2 - 1 if step < 500 else policy.select_action(given).reshape(1, 1)
        obs, reward, terminated, truncated, _ = env.step(chosen[0].numpy() * 2)
        following = {"observation.state": torch.from_numpy(obs)[None] / scale}
        buffer.add(given, chosen, float(reward), following, terminated, truncated)
        total += float(reward)
        if step >= 500:
            trainer.training_step()
        if truncated:
            print(f"episodic_return={total}")
            (obs, _), total = env.reset(), 0.0


PLAYS = {"Tianshou": play_tianshou, "PFRL": play_pfrl, "LeRobot": play_lerobot}
