"""Stable-Baselines3's DQN on CartPole."""

from __future__ import annotations

import time

import torch

from ..training_work import Setting, Trained


def train(setting: Setting, steps: int) -> Trained:
    """Trains on CartPole; the warm-up acts at random, as there."""
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
