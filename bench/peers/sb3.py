"""Stable-Baselines3 on CartPole: DQN, and PPO with 16 copies in one process."""

import time

import torch

from .plain_dqn import COPIES, Setting, Trained


def train_dqn(setting: Setting, steps: int) -> Trained:
    """The warm-up acts at random, as there."""
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    model = DQN(
        "MlpPolicy", "CartPole-v1", learning_rate=setting.learning_rate, buffer_size=setting.capacity,
        learning_starts=setting.warmup, batch_size=setting.batch, gamma=setting.gamma,
        train_freq=round(1 / setting.updates_per_step), gradient_steps=1,
        target_update_interval=round(setting.target_updates / setting.updates_per_step),
        exploration_initial_eps=setting.epsilon, exploration_final_eps=setting.epsilon,
        policy_kwargs={"net_arch": [setting.hidden] * 2}, device="cpu", seed=0,
    )  # fmt: skip
    model.learn(setting.warmup)
    began = time.perf_counter()
    model.learn(steps - setting.warmup, reset_num_timesteps=False)
    return Trained((steps - setting.warmup) / (time.perf_counter() - began), steps, model._n_updates)


def train_ppo(setting: Setting, steps: int) -> Trained:
    """Counts gradient steps, where Stable-Baselines3 counts passes."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    minibatch = setting.minibatch or setting.batch
    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=COPIES, seed=0), learning_rate=setting.learning_rate,
        n_steps=setting.batch // COPIES, batch_size=minibatch, n_epochs=setting.epochs, gamma=setting.gamma,
        policy_kwargs={"net_arch": [setting.hidden] * 2, "activation_fn": torch.nn.ReLU}, device="cpu", seed=0,
    )  # fmt: skip
    model.learn(setting.batch)
    began = time.perf_counter()
    model.learn(steps - setting.batch, reset_num_timesteps=False)
    taken, steps = model.num_timesteps - setting.batch, setting.batch // minibatch
    return Trained(taken / (time.perf_counter() - began), model.num_timesteps, model._n_updates * steps)
