"""Stable-Baselines3's PPO on CartPole: 16 copies in one process, one pass over each batch."""

from __future__ import annotations

import time

import torch

from ..training_work import COPIES, Setting, Trained


def train(setting: Setting, steps: int) -> Trained:
    """Trains on CartPole, one gradient step on each batch."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    model = PPO(
        "MlpPolicy", make_vec_env("CartPole-v1", n_envs=COPIES, seed=0), learning_rate=setting.learning_rate,
        n_steps=setting.batch // COPIES, batch_size=setting.batch, n_epochs=1, gamma=setting.gamma,
        policy_kwargs={"net_arch": [setting.hidden] * 2, "activation_fn": torch.nn.ReLU}, device="cpu", seed=0,
    )  # fmt: skip
    model.learn(setting.batch)
    began = time.perf_counter()
    model.learn(steps - setting.batch, reset_num_timesteps=False)
    taken = model.num_timesteps - setting.batch
    return Trained(taken / (time.perf_counter() - began), model.num_timesteps, model._n_updates)
